"""A part: one small answer to one of the questions that make up a federated method.

A part is a frozen dataclass of hyper-parameters with a few of the methods below; what it does not answer is left alone.
Parts hold no state: a client's state is in the `ClientContext`, the server's in the `Server`, both passed in. `claims` names
the one-answer slots it fills (`head`, `loss`, `step`, `merge`, `own`, `server_stage`, `client_stage`); two parts that claim
one slot cannot be combined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedframe.core.message import Message
from fedframe.core.model import Model

if TYPE_CHECKING:
    from fedframe.core.client_context import ClientContext
    from fedframe.core.method import Method
    from fedframe.core.server import Server
    from fedframe.data import Federation
    from fedframe.settings import Settings

Slot = Literal["head", "loss", "step", "merge", "own", "server_stage", "client_stage"]


class Merger(Protocol):
    """Takes the replies of one round, one by one, and says where the model goes."""

    def add(self, reply: Message, weight: float) -> None:
        """Take one client's reply; `weight` is its sample count, or 1 for every client alike.

        Its tensors are lent: clone what is kept beyond this call.
        """

    def finish(self) -> Tensor:
        """The step of the trainable weights, to be added to the server's model."""


@dataclass(frozen=True)
class HeadStage:
    """Some epochs of training in which the backbone stays as it is: its features are computed once, without
    augmentation, and many clients take their steps together.
    """

    epochs: int
    only: tuple[str, ...]  # how the names of the weights begin that are trained, also frozen ones
    lr: float | None = None  # None: the run's
    loss: Part | None = None  # None: the method's


@dataclass(frozen=True)
class Part:
    """The base of all parts; every method is a question that a part may answer."""

    name: ClassVar[str] = ""
    claims: ClassVar[frozenset[Slot]] = frozenset()
    paper: ClassVar[str] = ""
    remembers: ClassVar[bool] = False  # whether it keeps something in a client's memory between rounds
    pools_data: ClassVar[bool] = False  # whether it looks at all clients' data at once, as nobody can over a network
    sums: ClassVar[Literal["", "weighted", "plain"]] = ""  # what it takes from replies it needs only as a sum: with the
    # clients' weights, or plain; "": it needs single replies, if it takes anything

    rank: ClassVar[int] = 0  # parts of a higher rank act after those of a lower one

    @property
    def shares_a_model(self) -> bool:
        """Whether the shared tensors alone make a model that predicts; if not, there is no generic score."""
        return True

    def fits(self, method: Method) -> None:
        """Refuse other parts of the method, or the lack of one, with which this part would do nothing or harm."""

    def check(self, settings: Settings) -> None:
        """Refuse settings of the run that this part cannot work with."""

    def check_model(self, model: Model, clients: int) -> None:
        """Refuse a model, or so many clients with it, that this part cannot work with; before the run has a folder."""

    def reserve(self, federation: Federation, seed: int) -> Federation:
        """Put training data aside on the server (`federation.server_rows`) before anybody trains, and say so in its notes."""
        raise NotImplementedError

    # -- the model -----------------------------------------------------------------------------------------------------
    def build(self, model: Model) -> None:
        """Add modules to the model (`model.extras[name]`, `model.head`); torch's random state is seeded."""

    def private(self, model: Model) -> Collection[str]:
        """Names of the model's tensors that stay on the client."""
        return ()

    def predict(self, model: Model, features: Tensor) -> Tensor:
        """Class scores in prediction, where another classifier than `model.head` gives them."""
        raise NotImplementedError

    # -- on the client -------------------------------------------------------------------------------------------------
    def begin(self, context: ClientContext) -> None:
        """Prepare for one client's work: read `context.received` and `context.memory`, fill `context.scratch`."""

    def begin_epoch(self, context: ClientContext, epoch: int) -> None:
        """Change what is trained, epoch by epoch."""

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        """What happens to a feature on its way to the classifier; `context` is None in prediction.

        `context.training` is False while a client makes the model its own.
        """
        raise NotImplementedError

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """What a client minimises (slot `loss`)."""
        raise NotImplementedError

    def probabilities(self, logits: Tensor) -> Tensor:
        """What class scores that were learnt by this loss say of the classes' probabilities (slot `loss`)."""
        return logits.softmax(-1)

    def by_sample(self) -> bool:
        """Whether `transform` and the loss, outside of rounds, see each sample by itself, along the last dimension, and
        use only linear layers and single numbers of the model: samples of many clients can then be given at once.
        """
        return False

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The loss of every sample, whose mean is `loss`: logits (clients, samples, classes) of these clients' work."""
        raise NotImplementedError

    def penalty(self, context: ClientContext) -> Tensor:
        """What is added to the loss of a batch."""
        raise NotImplementedError

    def correct(self, context: ClientContext) -> None:
        """Change the gradients of a batch in place before the optimiser's step."""

    def step(self, context: ClientContext) -> Tensor:
        """Replace the whole step on one batch (slot `step`); returns the batch's loss."""
        raise NotImplementedError

    def after_step(self, context: ClientContext) -> None:
        """Act on the weights after the optimiser's step."""

    def finish(self, context: ClientContext) -> None:
        """Add to `context.reply` and `context.numbers` what the server needs; change `context.memory`.

        Whoever trains another model here (`context.fit`) has a high `rank`: others look at the round's own.
        """

    def own(self, context: ClientContext) -> None:
        """Put the client's own model as rounds have left it into `context.model` (slot `own`).

        For models that are more than the shared one with private tensors. They are scored between rounds, and the
        client stage starts from them. For a client that was in no round: something sensible, made up for only if
        `context.kind` is "personalise" (`context.make_up`).
        """
        raise NotImplementedError

    # -- on the server -------------------------------------------------------------------------------------------------
    def server_state(self, server: Server) -> dict[str, Tensor]:
        """What this part keeps in `server.state` between rounds (names start with the part's name)."""
        return {}

    def uploads(self, server: Server) -> dict[str, torch.Size]:
        """Names and shapes of the tensors this part adds to a client's reply, so that others can be refused."""
        return {}

    def choose(self, server: Server, round: int, clients: Sequence[int]) -> Sequence[int]:
        """Who trains in a round, given those that were drawn."""
        raise NotImplementedError

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        """What this part sends to every client of the round, beside the model."""
        return {}

    def merger(self, server: Server) -> Merger:
        """How updates are merged (slot `merge`)."""
        raise NotImplementedError

    def absorb(self, server: Server, reply: Message, weight: float) -> None:
        """Take from one accepted reply what this part keeps on the server."""

    def after_merge(self, server: Server, clients: int) -> None:
        """Act on the server once all `clients` replies of a round are merged."""

    # -- after the last round ------------------------------------------------------------------------------------------
    def statistics(self, context: ClientContext) -> dict[str, Tensor]:
        """What one client contributes to the server stage (slot `server_stage`)."""
        raise NotImplementedError

    def statistics_shapes(self, server: Server) -> dict[str, torch.Size]:
        """Names and shapes of those statistics, so that others can be refused."""
        return {}

    def conclude(self, server: Server, replies: Iterable[Message]) -> None:
        """Fit something on the server after the last round from all clients' statistics (slot `server_stage`)."""
        raise NotImplementedError

    def personalise(self, context: ClientContext) -> None:
        """Make `context.model` this client's own, most often with `context.fit` (slot `client_stage`)."""
        raise NotImplementedError

    def head_stages(self, method: Method) -> Sequence[HeadStage]:
        """What follows `personalise` and leaves the backbone alone; done for many clients at once."""
        return ()

    def finish_personal(self, context: ClientContext) -> None:
        """The last touch to a client's own model, after its head stages."""
