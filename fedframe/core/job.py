"""Everything that is needed to run clients: settings, method, data, the initial model, and where state is kept."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedframe.core.declared import is_declared, renamed
from fedframe.core.hook_errors import wrong_return
from fedframe.core.layout import named_tensors
from fedframe.core.measures import Evidence, Measured, measure
from fedframe.core.method import Method
from fedframe.core.model import Model, Roles, assign_roles, count_parameters, has_batch_norm
from fedframe.core.part import ModelSize, Part, Upload
from fedframe.core.part_check import class_location
from fedframe.core.personal import groups
from fedframe.core.private_state import Store
from fedframe.core.stacked_training import obstacle
from fedframe.core.target_measures import Single, single_predictions
from fedframe.data import Federation, Ragged, Samples
from fedframe.data.augment import Augment, read_augment
from fedframe.data.target import Target
from fedframe.errors import SettingError, nearest
from fedframe.settings import Settings, read_class_weights
from fedframe.util.files import write_tensors
from fedframe.util.schedule import Schedule
from fedframe.util.seeds import seed_for

PIECE = 2048  # test samples in one unit of scoring: small enough to share among workers, large enough to be worth it


@dataclass(frozen=True)
class Job:
    """What does not change during a run; worker processes inherit it and share its memory."""

    settings: Settings
    method: Method
    federation: Federation
    template: Model  # the initial model, never trained itself
    folder: Path  # private state and personal models live under it
    home: Path | None = None  # where a secret is kept that outlives the run; none: in its folder
    placed: str | None = None  # the device of this process, where a run has several
    run: str = ""  # the name of a network's run, at a node

    @property
    def device(self) -> str:
        """Where this process computes: the run's device, or the first of several."""
        return self.placed or self.settings.device.partition(",")[0].strip()

    def on(self, device: str) -> Job:
        """The same job on one device."""
        return replace(self, placed=device)

    def fresh_model(self) -> Model:
        """A new copy of the initial model on the run's device."""
        model = copy.deepcopy(self.template)
        return model.to(self.device)

    @cached_property
    def roles(self) -> Roles:
        """Which tensors travel, which stay."""
        return assign_roles(self.template, self.method.private(self.template), self.settings.buffers)

    @cached_property
    def store(self) -> Store:
        """The clients' private state."""
        return Store(self.folder / "clients")

    @cached_property
    def remembers(self) -> bool:
        """Whether clients have private state at all."""
        return bool(self.memory_names or self.roles.private) or self.settings.keep_optimizer

    @cached_property
    def obstacle(self) -> str:
        """Why clients cannot train together; empty if they can."""
        return obstacle(self)

    @cached_property
    def trains_together(self) -> bool:
        """Whether groups of clients train as one stack."""
        return self.settings.vectorise == "auto" and not self.obstacle

    @cached_property
    def memory_names(self) -> list[str]:
        """What parts keep in a client's memory."""
        owners: dict[str, str] = {}
        for part in self.method.parts:
            for name in part.memory:
                twin = next((each for each in owners if is_declared(name, [each]) or is_declared(each, [name])), None)
                if twin is not None:
                    raise SettingError(
                        f"The part {part.name!r} keeps {name!r} in a client's memory, and so does {owners[twin]!r}; "
                        f"rename it, for example to {renamed(part, name)!r}."
                    )
                owners[name] = part.name
        return list(owners)

    @cached_property
    def size(self) -> ModelSize:
        """What the shapes of uploads and of the server's state depend on."""
        return ModelSize(self.template.classes, self.template.dim, self.roles.layout.trainable, self.template.sizes)

    @cached_property
    def uploads(self) -> dict[str, Upload]:
        """All that parts send beside the update."""
        return {name: upload for name, (_, upload) in self._declared_uploads.items()}

    @cached_property
    def upload_owners(self) -> dict[str, str]:
        """The part that declares each of them."""
        return {name: part for name, (part, _) in self._declared_uploads.items()}

    @cached_property
    def _declared_uploads(self) -> dict[str, tuple[str, Upload]]:
        found: dict[str, tuple[str, Upload]] = {}
        for part in self.method.parts:
            declared = part.uploads(self.size)
            if not isinstance(declared, dict) or not all(isinstance(each, Upload) for each in declared.values()):
                raise wrong_return(part, "uploads", declared, "a dict of Upload")
            for name, upload in declared.items():
                if name in found or name == "update":
                    other = repr(found[name][0]) if name in found else "every method"
                    raise SettingError(
                        f"The part {part.name!r} uploads {name!r}, and so does {other}; rename it, for example to "
                        f"{renamed(part, name)!r}."
                    )
                found[name] = (part.name, upload)
        return found

    @cached_property
    def stages(self) -> int:
        """How often in a row clients are asked for statistics after the last round."""
        part = self.method.optional_slot("server_stage")
        return part.stages(self.template) if part is not None else 0

    def declared(self, when: str, stage: int = 0) -> dict[str, Upload]:
        """What parts send beside the update in a `round`, or in a stage of `statistics`."""
        return {name: each for name, each in self.uploads.items() if each.when == when and each.stage == stage}

    def expected(self, when: str, stage: int = 0) -> dict[str, torch.Size]:
        """Names and shapes of the tensors of a reply: of a `round`, or of a stage of `statistics`."""
        uploads = self.declared(when, stage)
        sizes = {name: torch.Size(upload.shape) for name, upload in uploads.items() if upload.aggregate != "number"}
        return {"update": torch.Size([self.roles.layout.size]), **sizes} if when == "round" else sizes

    @cached_property
    def numbers(self) -> list[str]:
        """The plain numbers that parts add to a round's reply."""
        return [name for name, upload in self.uploads.items() if upload.aggregate == "number"]

    @cached_property
    def shares_a_model(self) -> bool:
        """Whether the shared tensors alone make a model that predicts."""
        return self.method.shares_a_model and not (self.batch_norm and self.settings.buffers == "private")

    def fingerprint(self) -> str:
        """A short text that changes when the data, their split or the model's shape change."""
        source = self.federation.source
        digest = hashlib.blake2b(digest_size=16)
        for values in (
            source.train.y,
            *([source.train.values] if source.train.values is not None else []),
            self.federation.train.offsets,
            self.federation.train.values if len(source.train) else source.train.y,  # samples are elsewhere: no rows
            source.mean,
            source.std,
        ):
            digest.update(values.contiguous().numpy().tobytes())
        form = source.classes if source.target is None else (source.task, source.outputs)
        digest.update(repr((form, source.input_shape, self.roles.layout.size)).encode())
        return digest.hexdigest()

    @cached_property
    def batch_norm(self) -> bool:
        """Whether a batch of one sample cannot be trained on."""
        return has_batch_norm(self.template)

    @cached_property
    def augment(self) -> Augment:
        """What is done to training batches."""
        return read_augment(self.settings.augment)

    @cached_property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        return count_parameters(self.template)

    @cached_property
    def bytes_once(self) -> int:
        """Size of what a client receives once, not in every round: frozen class vectors and the like."""
        tensors = named_tensors(self.template)
        return sum(tensors[name].nbytes for name in self.roles.fixed)

    @property
    def clients_per_round(self) -> int:
        """How many clients are drawn for a round."""
        return per_round(self.settings.participation, len(self.federation))

    def fewest(self, asked: int) -> int:
        """How many replies make a round over a network; no secure sum has fewer than must agree on who is in it."""
        least = self.settings.min_clients
        if isinstance(least, str):  # all
            return asked
        least = least if least is not None else max(2, -(-asked // 2))
        return min(asked, max(least, agreeing(asked)) if self.settings.secure else least)

    def learning_rate(self, round: int) -> float:
        """The clients' learning rate in a round."""
        settings = self.settings
        return settings.lr * Schedule.read(settings.lr_schedule).factor(round, settings.rounds)

    @property
    def everyone(self) -> list[int]:
        """All clients that have not left, largest first."""
        return self.largest_first(self.federation.present)

    def largest_first(self, clients: npt.NDArray[np.int64]) -> list[int]:
        """Clients by falling size: long work starts early."""
        offsets = self.federation.train.offsets.numpy()
        order = np.lexsort((clients, offsets[clients] - offsets[clients + 1]))
        return [int(client) for client in clients[order]]

    # -- what is measured and minimised --------------------------------------------------------------------------------
    @property
    def target(self) -> Target | None:
        """What is learned, if it is no class."""
        return self.federation.source.target

    def predictions(self, outputs: Tensor, truth: Tensor, predicted: Tensor | None = None) -> Single:
        """A model's answers (probabilities, or numbers as they are learned) beside the truth."""
        return single_predictions(self.target, outputs, truth, predicted)

    def score(self, evidence: Evidence) -> Measured | None:
        """The run's metric of some predictions."""
        positive = self.positive if self.target is None else 1
        return measure(evidence, self.settings.score_metric, positive, self.settings.metric_at)

    @cached_property
    def positive(self) -> int:
        """Of two classes, the one that sensitivity and the like are about."""
        classes, asked = self.federation.source.classes, self.settings.positive
        if asked is None:
            return 1
        if asked not in classes:
            raise SettingError(f"positive = {asked!r} is none of the classes; {nearest(asked, classes)}")
        return list(classes).index(asked)

    @cached_property
    def class_weights(self) -> Tensor | None:
        """The weight of each class's samples in the loss, of mean 1 over the training samples; None for no weights."""
        given, classes = read_class_weights(self.settings.class_weights), self.federation.source.classes
        if given == "none":
            return None
        if isinstance(given, dict):
            for name in (*given, *classes):
                if name not in classes or name not in given:
                    example = ",".join(f"{each}={given.get(each, 1):g}" for each in classes[:20])
                    what = "has no weight" if name in classes else "is none of the classes"
                    raise SettingError(f"class_weights: {name!r} {what}; use '{example}'.")
            return torch.tensor([given[name] for name in classes], dtype=torch.float32)
        if not len(self.federation.source.train):
            raise SettingError(
                "class_weights = 'balanced' needs the labels of all clients, and those of a federation stay at its "
                f"nodes; give the weights: '{classes[0]}=1,{classes[1]}=9'."
            )
        counts = self.federation.source.train.y[self.federation.train.values].bincount(minlength=len(classes))
        return (len(self.federation.train.values) / (len(classes) * counts.clamp(min=1))).float()

    # -- test data -----------------------------------------------------------------------------------------------------
    @cached_property
    def watched(self) -> Tensor:
        """The clients that are scored between rounds: all, or a fixed draw when there are many."""
        total, most = len(self.federation), self.settings.eval_clients
        if total <= most:
            return torch.arange(total)
        draw = np.random.default_rng(seed_for(self.settings.seed, "watched"))
        return torch.from_numpy(np.sort(draw.choice(total, size=most, replace=False, shuffle=False)))

    def scored_clients(self, which: str) -> Tensor:
        """The clients of a local test set: `local` (the watched) or `local-all`."""
        return self.watched if which == "local" else torch.arange(len(self.federation))

    def test_rows(self, which: str) -> Tensor:
        """Rows of a test set: `test` (the global one), `local` or `local-all` (clients' own, one after the other)."""
        if which == "test":
            test = self.federation.source.test
            return torch.arange(len(test.y) if test is not None else 0)
        return gather_rows(self.federation.local_test, self.scored_clients(which))

    def pool(self, which: str) -> Samples:
        """The samples that a test set's rows point into."""
        source = self.federation.source
        if which != "test" and self.federation.local_test_pool == "train":
            return source.train
        assert source.test is not None
        return source.test

    def test_piece(self, which: str, piece: int) -> tuple[Samples, Tensor, Tensor]:
        """One piece of a test set: the pool, the rows, and their labels."""
        if which not in self._rows:
            self._rows[which] = self.test_rows(which)
        rows = self._rows[which][piece * PIECE : (piece + 1) * PIECE]
        pool = self.pool(which)
        return pool, rows, pool.targets[rows]

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        return {}

    def local_test(self, client: int) -> tuple[Samples, Tensor, Tensor]:
        """One client's own test data."""
        pool, rows = self.pool("local"), self.federation.local_test[client]
        return pool, rows, pool.targets[rows]

    # -- personal models -----------------------------------------------------------------------------------------------
    @cached_property
    def personal_groups(self) -> list[Sequence[int]]:
        """The clients that get a personal model, in groups: all, or a fixed draw when there are very many."""
        chosen, most = self.federation.present, self.settings.personal_clients
        if len(chosen) > most:
            generator = torch.Generator().manual_seed(seed_for(self.settings.seed, "personal"))
            chosen = chosen[torch.randperm(len(chosen), generator=generator)[:most].numpy()]
        return groups(self, self.largest_first(chosen))

    def own_tensors(self, model: Model, received: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What differs in a client's own model from the shared one that it was sent."""
        before = dict(self.roles.layout.views(received["model"]))
        frozen = named_tensors(self.template)
        before |= {name: received.get(f"fixed/{name}", frozen[name]) for name in self.roles.fixed}
        return {
            name: tensor.detach()
            for name, tensor in named_tensors(model).items()
            if name not in before or not torch.equal(tensor, before[name].to(tensor.device))
        }

    def keep_personal(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep what differs in a client's own model."""
        write_tensors(personal_path(self.folder, client), dict(tensors), {"client": client})


def check_names(job: Job, state_owners: Mapping[str, Part]) -> None:
    """Refuse names that do not say whose they are: another part may come to use the same."""
    uploads = {name: part for part in job.method.parts for name in part.uploads(job.size)}
    memory = {name: part for part in job.method.parts for name in part.memory}
    for owners, verb in ((memory, "keeps"), (uploads, "sends"), (state_owners, "keeps")):
        for name, part in owners.items():
            prefixes = [f"{base.name}/" for base in type(part).__mro__ if issubclass(base, Part) and base.name]
            if not name.startswith(tuple(prefixes)):
                raise SettingError(
                    f"{class_location(type(part))} {verb} {str(name)!r}; names start with the part's own: write "
                    f"{renamed(part, name)!r}."
                )


def per_round(participation: float, clients: int) -> int:
    """How many clients are drawn for a round."""
    return max(1, int(participation * clients + 0.5))


def agreeing(clients: int) -> int:
    """Of how many clients in a secure sum: how many must have been told the same list of survivors.

    More than two thirds, so that two lists cannot both find as many, unless a third of the clients lie. With three
    clients that would be all of them, and nobody could ever be away: two of three hold off an organiser alone.
    """
    return 2 if clients == 3 else 2 * clients // 3 + 1


def personal_path(folder: Path, client: int) -> Path:
    """Where a client's own model is kept."""
    return folder / "personal" / f"{client // 1000:03d}" / f"{client:06d}.safetensors"


def count_personal(folder: Path) -> int:
    """How many clients' own models are kept."""
    return sum(1 for _ in (folder / "personal").glob("[0-9]*/[0-9]*.safetensors"))


def gather_rows(ragged: Ragged, clients: Tensor) -> Tensor:
    """The rows of some clients, one after the other, without a Python loop over them."""
    if len(clients) == len(ragged):
        return ragged.values
    starts = ragged.offsets[clients]
    sizes = ragged.offsets[clients + 1] - starts
    shift = torch.repeat_interleave(starts - torch.cat([starts.new_zeros(1), sizes.cumsum(0)[:-1]]), sizes)
    return ragged.values[shift + torch.arange(len(shift))]
