"""A part: one idea of a federated method, as a frozen dataclass of hyper-parameters with a few hooks.

A hook is a method of `Part` that a part overrides; overriding it is all it takes. Some hooks fill a *slot*, of which a
method has one (`SLOTS`): two parts that fill the same slot cannot be combined. Parts hold no state: a client's is in
the `ClientContext`, the server's in the `Server`, and both are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from torch import Tensor

from fedframe.core.aggregation import RunningMean
from fedframe.core.message import Message
from fedframe.core.model import Model
from fedframe.data.target import TASKS, Task
from fedframe.errors import SettingError, nearest

if TYPE_CHECKING:
    from fedframe.core.client_context import ClientContext
    from fedframe.core.job import Job
    from fedframe.core.method import Method
    from fedframe.core.server import Server
    from fedframe.settings import Settings

WeightedReply = tuple[Message, float]  # a client's reply and its weight in the mean
Slot = Literal["head", "predict", "loss", "step", "merge", "load_personal", "server_stage", "client_stage"]

# Overriding one of these hooks fills the slot.
SLOTS: Mapping[Slot, tuple[str, ...]] = {
    "head": ("build_head",),
    "predict": ("predict",),
    "loss": ("loss",),
    "step": ("step",),
    "merge": ("server_step", "merger"),
    "load_personal": ("load_personal",),
    "server_stage": ("server_stage",),
    "client_stage": ("personalise", "head_stages"),
}
AGGREGATES, STAGES = ("sum", "weighted_sum", "each", "number"), ("round", "statistics")  # of an `Upload`
ALL_DATA = math.inf  # of `Part.server_samples`: the server looks at all clients' training data


@dataclass(frozen=True)
class ModelSize:
    """The sizes that the shapes of uploads depend on."""

    classes: int  # the number of classes
    dim: int  # of the feature that reaches the classifier
    trainable: int  # shared weights that learn, as one flat vector
    more: Mapping[str, int] = field(default_factory=dict)  # what parts have noted in `model.sizes` while they built it


@dataclass(frozen=True)
class Upload:
    """A tensor that clients send besides their update: its shape, and how the server receives it.

    With `sum` and `weighted_sum` (by the clients' weights in the mean) the server receives one tensor,
    `server.total(name)`, also under secure aggregation. With `each` it receives every client's tensor:
    `server.each(name)`. `number` is a plain number of shape (): the client puts it into `context.numbers`, and a merger
    finds it in `reply.numbers`. `when` says whether it belongs to a round's reply or to what `statistics` returns.
    `stage` says to which of several `stages`.
    """

    shape: Sequence[int]
    aggregate: Literal["sum", "weighted_sum", "each", "number"]
    when: Literal["round", "statistics"] = "round"
    stage: int = 0

    def __post_init__(self) -> None:
        for name, value, choices in (("aggregate", self.aggregate, AGGREGATES), ("when", self.when, STAGES)):
            if value not in choices:
                raise SettingError(f"Upload: {name} = {value!r}: {nearest(str(value), choices)}")
        if self.aggregate == "number" and (tuple(self.shape), self.when) != ((), "round"):
            raise SettingError(
                "Upload: a number has no shape and belongs to a round's reply; use Upload((), 'number')."
            )


@dataclass(frozen=True)
class State:
    """A tensor that a part keeps on the server between rounds. With `broadcast`, every request sends it to clients."""

    tensor: Tensor
    broadcast: bool = False


class Merger(Protocol):
    """A merger takes the replies of one round one by one, and returns the step of the model."""

    def add(self, reply: Message, weight: float) -> None:
        """Take one client's reply. `weight` is its sample count, or 1 if all clients have the same weight.

        `reply.tensors["update"]` holds the trainable weights first, `[: server.layout.trainable]`, then the averaged
        buffers, which the server merges itself. A part's own merger may keep the tensors.
        """

    def finish(self) -> Tensor:
        """Return the step to be added to the server's trainable weights. Steps of buffers may follow behind it."""


@dataclass(frozen=True)
class HeadStage:
    """Some epochs of training that leave the backbone unchanged. Its features are computed once, without augmentation,
    and many clients take their steps together.
    """

    epochs: int
    only: tuple[str, ...]  # prefixes of the names of the weights that are trained, also frozen ones
    lr: float | None = None  # None: the run's
    loss: Part | None = None  # None: the method's
    after: Callable[[ClientContext], None] | None = None  # a last change of the client's model, after all stages
    plain_steps: bool = False  # w <- w - lr g, whatever the run's momentum and weight decay are


@dataclass(frozen=True)
class Part:
    """The base class of all parts. Every method below is a hook: override the ones that you need."""

    name: ClassVar[str] = ""  # what it is called on the command line and in settings
    paper: ClassVar[str] = ""  # the reference that `fedframe show` prints
    rank: ClassVar[int] = 0  # parts of a higher rank act after those of a lower one
    memory: ClassVar[tuple[str, ...]] = ()  # what it keeps in `context.memory` between rounds; `ditto/*` for any name
    takes_over: ClassVar[tuple[Slot, ...]] = ()  # slots that it fills in place of any other part
    compares_with_server: ClassVar[bool] = False  # whether it relates local weights to the server's
    # Whether the server stage takes nothing from clients but sums of their statistics: then a client can be added later
    # or taken out, and the result is that of a run with it, or without it.
    from_sums: ClassVar[bool] = False
    # What it can be used for; None: every task, unless it overrides a hook that sees classes (`CLASS_HOOKS`).
    tasks: ClassVar[tuple[Task, ...] | None] = None
    same_in_rounds: ClassVar[bool] = False  # whether `transform` does in training just what it does in prediction
    sgd_steps: ClassVar[bool] = True  # whether a local step is lr times a gradient; a part that fills `step` may differ

    @property
    def shares_a_model(self) -> bool:
        """Whether the shared tensors alone make a model that can predict. If not, there is no generic score."""
        return True

    @property
    def server_samples(self) -> float:
        """How many training samples of every class the server takes from the clients, or `ALL_DATA`."""
        return 0

    @property
    def samplewise(self) -> bool:
        """Whether `transform`, outside of rounds, treats each sample separately, along the last dimension, and uses
        only linear layers and single numbers of the model. Then samples of many clients can be processed at once.
        """
        return False

    @property
    def protects(self) -> Literal["clients", "samples"] | None:
        """What noise hides in `statistics`, if the part itself adds the noise of the privacy settings.

        All clients' statistics are then one release with the noise multiplier `privacy_noise`. None means that
        statistics have no noise, and that privacy settings are refused.
        """
        return None

    # -- checks, before anything runs ----------------------------------------------------------------------------------
    def check_method(self, method: Method) -> None:
        """Refuse a method whose other parts, or the lack of one, make this part useless or harmful."""

    def check_settings(self, settings: Settings) -> None:
        """Refuse settings of the run that this part cannot work with."""

    def check_model(self, model: Model, clients: int) -> None:
        """Refuse a model, or a number of clients, that this part cannot work with."""

    # -- the model -----------------------------------------------------------------------------------------------------
    def build(self, model: Model) -> None:
        """Add modules to the model (`model.extras[name]`). torch's random state is already seeded."""

    def build_head(self, model: Model) -> None:
        """Make the classifier, `model.head` (slot `head`). torch's random state is already seeded."""
        raise NotImplementedError

    def private(self, model: Model) -> Collection[str]:
        """Return the names of the model's tensors that stay on the client."""
        return ()

    def predict(self, model: Model, features: Tensor) -> Tensor:
        """Return class scores for prediction, if they do not come from `model.head` (slot `predict`)."""
        raise NotImplementedError

    # -- on the client -------------------------------------------------------------------------------------------------
    def begin(self, context: ClientContext) -> None:
        """Prepare one client's work: read `context.received` and `context.memory`, fill `context.scratch`."""

    def begin_epoch(self, context: ClientContext, epoch: int) -> None:
        """Change which weights are trained. Called before every epoch."""

    def begin_batch(self, context: ClientContext) -> None:
        """Change the current batch, `context.inputs` and `context.labels`, before the step on it."""

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        """Change features on their way to the classifier. `context` is None in prediction.

        `context.training` is False while a client makes its personal model.
        """
        raise NotImplementedError

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """Return the loss that a client minimises (slot `loss`)."""
        raise NotImplementedError

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """Return the loss of every sample outside of rounds. Its mean is `loss`. Logits: (clients, samples, classes).

        Optional, in addition to `loss`. With it, the heads of many clients are trained at once.
        """
        raise NotImplementedError

    def round_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """Return the loss of every sample in rounds. Its mean is `loss`. Logits: (clients, samples, classes).

        Optional, in addition to `loss`. With it, clients can train together (`vectorise`). If a loss is the same in
        rounds and after them, write `round_losses = row_losses`.
        """
        raise NotImplementedError

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits that were learned with this loss into class probabilities. Optional, in addition to `loss`."""
        return logits.softmax(-1)

    def penalty(self, context: ClientContext) -> Tensor:
        """Return a term that is added to the loss of a batch."""
        raise NotImplementedError

    def correct(self, context: ClientContext) -> None:
        """Change the gradients of a batch in place before the optimiser's step."""

    def step(self, context: ClientContext) -> Tensor:
        """Replace the whole step on one batch (slot `step`), and return the batch's loss.

        Most parts use `context.compute_gradient` and `context.apply_gradient`.
        """
        raise NotImplementedError

    def finish(self, context: ClientContext) -> None:
        """Add to `context.reply` and `context.numbers` what `uploads` declares; change `context.memory`.

        A part that trains another model here (`context.fit`) needs a high `rank`, because other parts read the model
        of the round.
        """

    def load_personal(self, context: ClientContext) -> None:
        """Load the client's own model, as it is after its rounds, into `context.model` (slot `load_personal`).

        This is for personal models that are more than the shared one with private tensors. They are scored between
        rounds, and the client stage starts from them. A client that was in no round needs a sensible model, too. Train
        it (`context.train_missed_rounds`) only if `context.kind` is "personalise".
        """
        raise NotImplementedError

    # -- between client and server -------------------------------------------------------------------------------------
    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """Declare everything that this part adds to a client's reply or statistics. Any other name is refused."""
        return {}

    # -- on the server -------------------------------------------------------------------------------------------------
    def server_state(self, server: Server) -> dict[str, State]:
        """Declare what this part keeps in `server.state` between rounds.

        Names start with the part's name. Any other name is refused.
        """
        return {}

    def select_clients(self, server: Server, round: int, clients: Sequence[int]) -> Sequence[int]:
        """Choose who trains in a round. `clients` are those that were drawn."""
        raise NotImplementedError

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """Return the step of the shared weights from the weighted mean of the clients' updates (slot `merge`)."""
        raise NotImplementedError

    def before_merge(self, server: Server, replies: Sequence[WeightedReply]) -> Sequence[WeightedReply]:
        """Return the replies that are merged: with other updates, or fewer of them.

        All updates of the round are kept in memory for this hook, in their order. Do not change their tensors in place.
        """
        raise NotImplementedError

    def merger(self, server: Server) -> Merger:
        """Return a new merger for a round, if the mean of the updates is not enough (slot `merge`)."""
        raise NotImplementedError

    def after_merge(self, server: Server, clients: int) -> None:
        """Act on the server after all replies of a round are merged. `clients` is their number."""

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """Bound how far this part can move in one round what clients receive: `model` (the shared weights),
        `fixed/NAME`, and what is broadcast.

        `longest` has norms that no client's reply has exceeded so far: of `update` without buffers, and of uploads.
        Nodes refuse what has moved many times as far (`step_bound`). None means that no bound is known, and nodes check
        none. This is the default for a part that merges, or acts after the merge.
        """
        return None

    # -- after the last round ------------------------------------------------------------------------------------------
    def after_rounds(self, server: Server) -> None:
        """Change the shared model after the last round is scored, before any stage."""

    def stages(self, model: Model) -> int:
        """How often clients are asked for statistics. Each request has the server's result of the one before."""
        return 1

    def statistics(self, context: ClientContext) -> dict[str, Tensor]:
        """Return what a client contributes to the server stage `context.stage`, as `uploads` declares it."""
        raise NotImplementedError

    def server_stage(self, server: Server, replies: Iterable[Message]) -> None:
        """Fit something on the server after the last round, from all clients' statistics (slot `server_stage`).

        With several `stages` it is called once for each, in order; `server.stage` says which.
        """
        raise NotImplementedError

    def personalise(self, context: ClientContext) -> None:
        """Turn `context.model` into this client's own model, usually with `context.fit` (slot `client_stage`)."""

    def head_stages(self, method: Method, model: Model) -> Sequence[HeadStage]:
        """Declare training after `personalise` that leaves the backbone unchanged. Many clients run it at once."""
        return ()


ATTRIBUTES = (
    "name",
    "paper",
    "rank",
    "memory",
    "takes_over",
    "compares_with_server",
    "from_sums",
    "tasks",
    "same_in_rounds",
    "sgd_steps",
)
PROPERTIES = ("shares_a_model", "server_samples", "samplewise", "protects")
HOOKS: tuple[str, ...] = tuple(
    name for name, value in vars(Part).items() if callable(value) and not name.startswith("_")
)


ON_SERVER = ("server_step", "merger", "before_merge", "after_merge")  # hooks that act on the server in rounds


def overrides(kind: type[Part], hook: str) -> bool:
    """Whether a part's class has its own version of a hook."""
    return getattr(kind, hook) is not getattr(Part, hook)


# Hooks that see classes, their labels, their scores or their features. A part that overrides one of them is for
# classification, unless its class, or one below it, says in `tasks` that it means more.
CLASS_HOOKS = (
    "build_head",
    "predict",
    "begin_batch",
    "transform",
    "loss",
    "row_losses",
    "probabilities",
    "penalty",
    "statistics",
    "server_stage",
    "head_stages",
)


def tasks_of(kind: type[Part]) -> tuple[Task, ...]:
    """The tasks that a part can be used for. A subclass that replaces such a hook has to declare it again."""

    def owner(name: str) -> type:
        return next(each for each in kind.__mro__ if name in vars(each))

    declared = kind.tasks is not None
    if declared and all(issubclass(owner("tasks"), owner(hook)) for hook in CLASS_HOOKS):
        return kind.tasks or ()
    inherited = any(overrides(kind, hook) for hook in (*CLASS_HOOKS, "server_samples"))
    return ("classification",) if declared or inherited else TASKS


def filled_slots(kind: type[Part]) -> set[Slot]:
    """The slots that a part fills, by the hooks that it overrides."""
    return {slot for slot, hooks in SLOTS.items() if any(overrides(kind, hook) for hook in hooks)}


def stacks(kind: type[Part], hook: Literal["row_losses", "round_losses"] = "row_losses") -> bool:
    """Whether `row_losses` speaks of the very loss that the class has: a subclass may have replaced that alone."""
    owner = {name: next(each for each in kind.__mro__ if name in vars(each)) for name in ("loss", hook)}
    return overrides(kind, hook) and issubclass(owner[hook], owner["loss"])
