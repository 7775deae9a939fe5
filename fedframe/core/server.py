"""The server's side: the one loop over rounds, for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedframe.core.evaluate import Scores, final_scores, score_shared
from fedframe.core.job import Job
from fedframe.core.merging import RunningMean
from fedframe.core.message import Message, flaw
from fedframe.core.schedule import learning_rate
from fedframe.core.seeds import seed_for
from fedframe.errors import RunError


class Engine(Protocol):
    """Who runs the clients."""

    def run(self, order: Message, units: Sequence[int]) -> Iterator[Message]:
        """Have an order performed for every unit; replies come in the order of the units.

        A reply's tensors are lent: they may be overwritten as soon as the next reply is asked for.
        """


@dataclass
class RoundRecord:
    """What is known about a round when it is over: a line of `metrics.jsonl`."""

    round: int
    loss: float
    lr: float
    clients: int
    dropped: int
    seconds: float
    bytes_up: int
    bytes_down: int
    scores: Scores | None = None
    dropped_why: list[str] = field(default_factory=list)


class Server:
    """The shared model, what parts keep beside it, and the loop over rounds."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self.job = job
        self.engine = engine
        self.layout = job.roles.layout
        self.model = self.layout.flatten(dict(job.template.state_dict()))  # the shared weights as one flat vector
        self.state: dict[str, Tensor] = {}  # what parts keep on the server; names start with the part's name
        self.scratch: dict[str, Any] = {}  # what parts gather during one round
        self.replaced: dict[str, Tensor] = {}  # fixed tensors of the model that the server stage has set anew
        self.last_scores: Scores | None = None  # of the model as it stands
        self.round = 0  # the last finished round
        for part in job.method.parts:
            self.state |= part.server_state(self)
        self.expected = {"update": torch.Size([self.layout.size])}
        for part in job.method.parts:
            self.expected |= part.uploads(self)

    # -- the loop over rounds ------------------------------------------------------------------------------------------
    def train(self, finished: Callable[[RoundRecord], None], progress: Callable[[int, int], None]) -> None:
        """Run the rounds that are left; `finished` is called after each, `progress` after each client."""
        for round in range(self.round + 1, self.job.settings.rounds + 1):
            record = self.run_round(round, progress)
            self.round = round
            every = self.job.settings.eval_every
            if (every and round % every == 0) or round == self.job.settings.rounds:
                record.scores = self.last_scores = score_shared(self, "local")
            finished(record)

    def run_round(self, round: int, progress: Callable[[int, int], None]) -> RoundRecord:
        """One round: choose clients, send the model, merge what comes back."""
        began = time.perf_counter()
        method = self.job.method
        self.scratch, self.last_scores = {}, None
        clients = self.choose(round)
        order = self.order("train", round)
        merger = method.slot("merge").merger(self)
        buffers = RunningMean(self.layout.size - self.layout.trainable)
        losses = RunningMean(1)
        record = RoundRecord(round, float("nan"), float(order.numbers["lr"]), len(clients), 0, 0.0, 0, 0)
        record.bytes_down = order.nbytes * len(clients)
        for done, reply in enumerate(self.engine.run(order, clients), start=1):
            record.bytes_up += reply.nbytes
            problem = flaw(reply, order, self.expected)
            if problem is None:
                weight = self.weight(reply)
                merger.add(reply, weight)
                buffers.add(reply.tensors["update"][self.layout.trainable :], weight)
                losses.add(torch.tensor([float(reply.numbers["loss"])]), float(reply.numbers["samples"]))
                for part in method.answering("absorb"):
                    part.absorb(self, reply, weight)
            else:
                record.dropped += 1
                record.dropped_why.append(f"client {reply.unit}: {problem}")
            progress(done, len(clients))
        if record.dropped == len(clients):
            raise RunError(
                f"Round {round}: every client's update was refused ({record.dropped_why[0]}); "
                f"a smaller lr (now {record.lr:g}) or clip = 10 may help."
            )
        self.move(merger.finish(), buffers.mean())
        for part in method.answering("after_merge"):
            part.after_merge(self, len(clients) - record.dropped)
        record.loss = float(losses.mean())
        record.seconds = time.perf_counter() - began
        return record

    # -- its steps -----------------------------------------------------------------------------------------------------
    def choose(self, round: int) -> list[int]:
        """The clients of a round, largest first: long work starts early; updates are merged in this order too."""
        total = len(self.job.federation)
        count = max(1, int(self.job.settings.participation * total + 0.5))
        draw = np.random.default_rng(seed_for(self.job.settings.seed, "clients", round))
        chosen = np.arange(total) if count == total else draw.choice(total, count, replace=False, shuffle=False)
        sizes = self.job.federation.train.offsets.numpy()
        return [int(client) for client in chosen[np.lexsort((chosen, sizes[chosen] - sizes[chosen + 1]))]]

    def order(self, kind: str, round: int) -> Message:
        """What goes out to the clients: the model and what parts add."""
        tensors = {"model": self.model, **{f"fixed/{name}": value for name, value in self.replaced.items()}}
        for part in self.job.method.answering("broadcast"):
            tensors |= part.broadcast(self)
        return Message(kind, round, -1, tensors, {"lr": learning_rate(self.job.settings, max(round, 1))})

    def weight(self, reply: Message) -> float:
        """A client's weight in the mean."""
        return float(reply.numbers["samples"]) if self.job.settings.weighting == "samples" else 1.0

    def move(self, step: Tensor, buffers: Tensor) -> None:
        """Add a step to the trainable weights and the mean change to the buffers, rounding once."""
        change = torch.cat([step.double(), buffers.double()])
        self.model = (self.model.double() + change).float()

    # -- after the last round ------------------------------------------------------------------------------------------
    def conclude(self, progress: Callable[[int, int], None]) -> Scores:
        """The server stage, the client stage, and the final scores."""
        stage = self.job.method.optional_slot("server_stage")
        if stage is not None:
            stage.conclude(self, self.ask_everyone("statistics", progress))
            self.last_scores = None
        return final_scores(self, progress)

    def ask_everyone(self, kind: str, progress: Callable[[int, int], None]) -> Iterator[Message]:
        """Every client's answer to an order, one by one."""
        everyone = list(range(len(self.job.federation)))
        for done, reply in enumerate(self.engine.run(self.order(kind, self.round + 1), everyone), start=1):
            yield reply
            progress(done, len(everyone))

    def tensors(self) -> dict[str, Tensor]:
        """All that the server must not lose."""
        return {"model": self.model, **{f"state/{name}": tensor for name, tensor in self.state.items()}}

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on after a round from what `tensors` gave."""
        self.model = tensors["model"]
        self.state = {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("state/")}
        self.round = round
