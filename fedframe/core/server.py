"""The server's side: the one loop over rounds, for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedframe.core.aggregation import RunningMean
from fedframe.core.evaluation import Scores, final_scores, score_round
from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.message import LOST, Message, all_finite, validate_reply
from fedframe.core.model import Model, load_tensors
from fedframe.core.part import Merger
from fedframe.core.privacy import clipped, epsilon, fresh_generator, noise, secret_draw
from fedframe.core.remote import Remote
from fedframe.core.remote_evaluation import (
    fetch_late_scores,
    final_scores_from_afar,
    late_scores,
    score_round_from_afar,
)
from fedframe.errors import DivergedError
from fedframe.util.schedule import Schedule
from fedframe.util.seeds import generator_for, seed_for

Progress = Callable[[int, int], None]
ALL = -1  # the unit of a reply that stands for several clients; no client has it


class Engine(Protocol):
    """Who runs the clients."""

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Have an order performed for every unit; replies come in the order of the units.

        A reply's tensors are lent: they may be overwritten as soon as the next reply is asked for. In the place of a
        reply that never came (a client behind a network) stands a message of the kind `lost`, with the reason.
        """


class Observer(Protocol):
    """Who looks on while rounds are run, to measure something; it changes nothing."""

    def begin(self, server: Server, clients: Sequence[int]) -> None:
        """A round begins with these clients; the model is still the one they get."""

    def saw(self, reply: Message) -> None:
        """A client's reply was accepted; its tensors are lent."""

    def end(self, server: Server, record: RoundRecord) -> None:
        """The round is over, merged and (if it is one that is) scored: add to the record's figures and lists."""


@dataclass
class RoundRecord:
    """What is known about a round when it is over: a line of `metrics.jsonl`."""

    round: int
    loss: float
    lr: float
    clients: int
    dropped: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    figures: dict[str, float] = field(default_factory=dict)  # what parts and observers have to tell
    by_client: dict[str, list[Any]] = field(default_factory=dict)  # the same client by client: a line of `drift.jsonl`
    scores: Scores | None = None
    late: Scores | None = None  # of the model that the round began with, where clients score it on their own data


class Server:
    """The shared model, what parts keep beside it, and the loop over rounds."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        note: Callable[[str], None] = print,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.job, self.engine, self.note, self.observers = job, engine, note, observers
        self.layout = job.roles.layout
        self.model = self.layout.flatten(named_tensors(job.template))  # the shared weights as one flat vector
        self.fixed_overrides: dict[str, Tensor] = {}  # fixed tensors of the model that the server has set anew
        self.state: dict[str, Tensor] = {}  # what parts keep on the server; names start with the part's name
        self.scratch: dict[str, Any] = {}  # what parts gather during one round
        self.figures: dict[str, float] = {}  # what parts want to see in the round's line of metrics
        self.round = 0  # the last finished round
        self.last_scores: Scores | None = None  # of the model as it stands
        self.late: Scores | None = None  # what clients have added to the scores of the last round, afterwards
        self.traffic: dict[str, dict[str, int]] = {"up": {}, "down": {}}  # bytes so far, by the name of the tensor
        self._net: tuple[Model, Tensor] | None = None  # made when a part first asks for it
        for part in job.method.parts:
            self.state |= part.server_state(self)
        self.expected = {"update": torch.Size([self.layout.size])}
        for part in job.method.parts:
            self.expected |= part.uploads(self)
        if isinstance(engine, Remote):
            engine.expected["train"] = self.expected

    # -- the loop over rounds ------------------------------------------------------------------------------------------
    def train(self, finished: Callable[[RoundRecord], None], progress: Progress) -> None:
        """Run the rounds that are left; `finished` is called after each, `progress` after each client."""
        settings = self.job.settings
        for round in range(self.round + 1, settings.rounds + 1):
            record = self.run_round(round, progress)
            self.round = round
            if (settings.eval_every and round % settings.eval_every == 0) or round == settings.rounds:
                record.scores = self.last_scores = self.score()
            for observer in self.observers:
                observer.end(self, record)
            finished(record)

    def run_round(self, round: int, progress: Progress) -> RoundRecord:
        """One round: choose clients, send the model, merge what comes back."""
        began = time.perf_counter()
        method = self.job.method
        self.scratch, self.figures, self.last_scores = {}, {}, None
        clients = self.choose(round)
        request = self.build_request("train", round)
        merger = method.slot("merge").merger(self)
        buffers = RunningMean(self.layout.size - self.layout.trainable)
        losses = RunningMean(1)
        record = RoundRecord(round, float("nan"), float(request.numbers["lr"]), len(clients))
        record.bytes_down = self.count("down", request, len(clients))
        for observer in self.observers:
            observer.begin(self, clients)
        accepted = lost = 0
        for done, reply in enumerate(self.engine.run(request, clients), start=1):
            record.bytes_up += self.count("up", reply)
            lost += reply.kind == LOST
            if self.accepts(reply, request, self.expected):
                behind, reply = self.represented_clients(reply), self.clip_update(reply)
                accepted += len(behind)
                if isinstance(self.engine, Remote):
                    self.engine.seen[behind] = round
                weight = self.weight(reply)
                merger.add(reply, weight)
                buffers.add(reply.tensors["update"][self.layout.trainable :], weight)
                losses.add(torch.tensor([float(reply.numbers["loss"])]), float(reply.numbers["samples"]))
                for part in method.answering("absorb"):
                    part.absorb(self, reply, weight)
                for observer in self.observers:
                    observer.saw(reply)
            progress(done, len(clients))
        record.dropped = len(clients) - accepted
        if accepted == 0 and lost < len(clients):
            raise DivergedError(
                f"Round {round}: not one of {len(clients)} updates could be used; start again with a smaller lr "
                f"(now {record.lr:g}) or with clip = 10."
            )
        if lost:
            self.figures["lost"] = lost
        record.late = late_scores(self)
        self.add_noise(merger, round)
        record.figures = self.figures
        if accepted == 0:
            self.note(f"Round {round} is given up: no update could be added up, and the model stays as it is.")
            record.seconds = time.perf_counter() - began
            return record
        self.move(merger.finish(), buffers.mean())
        if not all_finite(self.model):  # nobody could train on it, and clients behind a network would refuse it
            raise DivergedError(
                f"Round {round}: the mean of {accepted} updates is too large for the weights' type; start again with a "
                f"smaller lr (now {record.lr:g}) or with clip = 10."
            )
        for part in method.answering("after_merge"):
            part.after_merge(self, accepted)
        record.loss = float(losses.mean())
        record.seconds = time.perf_counter() - began
        return record

    # -- its steps -----------------------------------------------------------------------------------------------------
    def choose(self, round: int) -> list[int]:
        """The clients of a round, largest first: long work starts early; updates are merged in this order too."""
        total = len(self.job.federation)
        count = self.job.clients_per_round
        chosen = np.arange(total)
        if count < total:
            private = self.job.settings.privacy_clip is not None
            seed = seed_for(self.job.settings.seed, "clients", round)
            draw = secret_draw(self.job.folder, round) if private else np.random.default_rng(seed)
            chosen = draw.choice(total, count, replace=False, shuffle=False)
        clients: Sequence[int] = self.job.largest_first(chosen)
        for part in self.job.method.answering("choose"):
            clients = part.choose(self, round, clients)
        return list(clients)

    def build_request(self, kind: str, round: int) -> Message:
        """What goes out to the clients: the model and what parts add."""
        settings = self.job.settings
        tensors = {"model": self.model, **{f"fixed/{name}": value for name, value in self.fixed_overrides.items()}}
        for part in self.job.method.answering("broadcast"):
            tensors |= part.broadcast(self)
        # The schedule is one of rounds; what comes after them starts from the learning rate itself.
        factor = Schedule.read(settings.lr_schedule).factor(round, settings.rounds) if kind == "train" else 1.0
        return Message(kind, round, -1, tensors, {"lr": settings.lr * factor})

    def count(self, way: str, message: Message, times: int = 1) -> int:
        """The bytes of a message, which are added to what was sent in this way before."""
        total, sent = 0, self.traffic[way]
        if way == "up" and message.unit == ALL:  # what a sum was made of are masked words, which belong to no part
            total = int(message.numbers["bytes"])
            sent["masked"] = sent.get("masked", 0) + total
            return total
        for name, tensor in message.tensors.items():
            size = tensor.nbytes * times
            known = name if way == "down" or name in self.expected else "refused"
            sent[known] = sent.get(known, 0) + size
            total += size
        return total

    def accepts(self, reply: Message, request: Message, expected: dict[str, torch.Size]) -> bool:
        """Whether a reply may be used; if not, say why."""
        if self.is_lost(reply, request):
            return False
        problem = validate_reply(reply, request, expected, self.most_samples(reply))
        if problem is not None:
            self.note(f"Round {request.round}: the reply of client {reply.unit} was refused: {problem}.")
        return problem is None

    def most_samples(self, reply: Message) -> int | None:
        """What a client's weight can be: nobody has more training samples than it said before the first round."""
        if not isinstance(self.engine, Remote) or self.job.settings.secure:  # there the engine has seen to it
            return None
        return len(self.job.federation.train[reply.unit])

    def is_lost(self, reply: Message, request: Message) -> bool:
        """Whether a reply never came; if so, say why."""
        if reply.kind == LOST:
            name = self.job.federation.names[reply.unit]
            self.note(f"Round {request.round}, {request.kind}: no reply of client {name}: {reply.numbers['reason']}.")
        return reply.kind == LOST

    def represented_clients(self, reply: Message) -> list[int]:
        """The clients for which a reply stands: one, or with secure aggregation all whose sum it is."""
        if isinstance(self.engine, Remote) and self.job.settings.secure:
            return self.engine.summed
        return [reply.unit]

    def weight(self, reply: Message) -> float:
        """A client's weight in the mean, or that of all for which a reply stands."""
        if self.job.settings.weighting == "samples":
            return float(reply.numbers["samples"])
        return float(len(self.represented_clients(reply)))

    def clip_update(self, reply: Message) -> Message:
        """The reply with its update no longer than the privacy settings allow, where the server sees single ones."""
        settings = self.job.settings
        if settings.privacy_clip is None or settings.secure or settings.privacy_at == "node":
            return reply
        return replace(reply, tensors={"update": clipped(reply.tensors["update"], settings.privacy_clip)})

    def add_noise(self, merger: Merger, round: int) -> None:
        """Hide every single client in the sum of updates, and say what was spent of its privacy so far."""
        settings = self.job.settings
        if settings.privacy_clip is None:
            return
        at_server = settings.privacy_at == "server"
        if at_server:
            running: RunningMean = merger.running  # type: ignore[attr-defined]  # of a mean of updates: `check_private`
            deviation = settings.privacy_clip * settings.privacy_noise
            running.total += noise(len(running.total), deviation, fresh_generator())
        drawn, clients = self.job.clients_per_round, len(self.job.federation)
        self.figures["epsilon"] = epsilon(
            settings.privacy_noise, settings.privacy_delta, round, drawn, clients, at_server
        )

    @property
    def weight_of_all(self) -> float:
        """What the weights of all clients add up to, whoever takes part in a round."""
        train = self.job.federation.train
        return float(len(train.values) if self.job.settings.weighting == "samples" else len(train))

    def move(self, step: Tensor, buffers: Tensor) -> None:
        """Add a step to the trainable weights and the mean change to the buffers, rounding once."""
        change = torch.cat([step.double(), buffers.double()])
        self.model = (self.model.double() + change).float()

    # -- after the last round ------------------------------------------------------------------------------------------
    def conclude(self, progress: Progress) -> Scores:
        """The server stage, the client stage, and the final scores."""
        stage = self.job.method.optional_slot("server_stage")
        if stage is not None:
            self.late = fetch_late_scores(self)  # of the model before the stage changes it
            shapes = stage.statistics_shapes(self)
            if isinstance(self.engine, Remote):
                self.engine.expected["statistics"] = shapes
            before = (self.model.clone(), dict(self.fixed_overrides), dict(self.state))
            stage.conclude(self, self.ask_everyone("statistics", shapes, progress))
            self.last_scores = None
            if not all(all_finite(tensor) for tensor in (self.model, *self.fixed_overrides.values())):
                self.model, self.fixed_overrides, self.state = before
                self.note(
                    f"{stage.name} gave NaN or infinite weights, from statistics that are too large or do not suffice; "
                    "the model stays as the last round has left it."
                )
        if isinstance(self.engine, Remote):
            return final_scores_from_afar(self, self.engine, progress)
        return final_scores(self, progress)

    def score(self) -> Scores:
        """What is measured between rounds."""
        if isinstance(self.engine, Remote):
            return score_round_from_afar(self, self.engine)
        return score_round(self)

    def ask_everyone(self, kind: str, expected: dict[str, torch.Size], progress: Progress) -> Iterator[Message]:
        """Every client's usable answer to an order, one by one; the order is given only if one is asked for."""
        request = self.build_request(kind, self.round + 1)
        everyone = self.job.largest_first(np.arange(len(self.job.federation)))
        for done, reply in enumerate(self.engine.run(request, everyone), start=1):
            if self.accepts(reply, request, expected):
                yield reply
            progress(done, len(everyone))

    # -- what parts use ------------------------------------------------------------------------------------------------
    def tensor(self, name: str) -> Tensor:
        """A tensor of the model by name, as the server has it."""
        shared = self.layout.views(self.model)
        if name in shared:
            return shared[name]
        return self.fixed_overrides.get(name, named_tensors(self.job.template)[name].detach())

    def set_tensor(self, name: str, value: Tensor) -> None:
        """Set a tensor of the model, shared or fixed; clients get it with the next order."""
        shared = self.layout.views(self.model)
        if name in shared:
            shared[name].copy_(value)
        else:
            self.fixed_overrides[name] = value.detach().clone().float()

    def net(self) -> Model:
        """The shared model as it stands, as a net in evaluation mode: for parts that work with data on the server."""
        if self._net is None:
            model = self.job.fresh_model().eval()
            self._net = (model, self.layout.bind(model))
        model, flat = self._net
        with torch.no_grad():
            flat.copy_(self.model)
        load_tensors(model, self.fixed_overrides)
        return model

    def generator(self, purpose: str) -> torch.Generator:
        """A random stream of the server, the same for any engine and after a resume."""
        return generator_for(self.job.settings.seed, "server", purpose, self.round)

    # -- what must not be lost -----------------------------------------------------------------------------------------
    def tensors(self) -> dict[str, Tensor]:
        """All that a resumed run needs of the server."""
        named = {"state": self.state, "replaced": self.fixed_overrides}
        if isinstance(self.engine, Remote):
            named["network"] = {"seen": self.engine.seen}
        return {"model": self.model} | {f"{kind}/{name}": t for kind, ts in named.items() for name, t in ts.items()}

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on after a round from what `tensors` gave."""
        self.model = tensors["model"]
        self.state = {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("state/")}
        self.fixed_overrides = {name[9:]: tensor for name, tensor in tensors.items() if name.startswith("replaced/")}
        if isinstance(self.engine, Remote) and "network/seen" in tensors:
            self.engine.seen = tensors["network/seen"]
        self.round = round
