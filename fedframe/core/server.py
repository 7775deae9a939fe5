"""The server's side: the one loop over rounds, for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedframe.core.aggregation import MeanMerger, RunningMean, UploadSums
from fedframe.core.engine import Engine
from fedframe.core.evaluation import Scores
from fedframe.core.hook_errors import named_errors, returned_tensor, wrong_return
from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.message import LOST, Message, all_finite, validate_reply
from fedframe.core.model import Model, load_tensors
from fedframe.core.part import Merger, State, WeightedReply
from fedframe.core.part_check import place
from fedframe.core.privacy import clipped, epsilon, fresh_generator, noise, secret_generator
from fedframe.core.reply_limits import ReplyLimits
from fedframe.errors import DivergedError, RunError
from fedframe.util.schedule import Schedule
from fedframe.util.seeds import generator_for, seed_for

Progress = Callable[[int, int], None]
ALL = -1  # the unit of a reply that stands for several clients; no client has it


class Observer(Protocol):
    """Measures something while rounds are run; it changes nothing."""

    def begin(self, server: Server, clients: Sequence[int]) -> None:
        """A round begins with these clients; the model is still the one they get."""

    def on_reply(self, reply: Message) -> None:
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
    figures: dict[str, float] = field(default_factory=dict)  # what parts and observers report
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
        self.state: dict[str, Tensor] = {}  # what parts keep on the server, as `server_state` declares it
        self.figures: dict[str, float] = {}  # what parts want to see in the round's line of metrics
        self.problems: list[str] = []  # why replies of the round under way were refused
        self.round = 0  # the last finished round
        self.last_scores: Scores | None = None  # of the model as it stands
        self.late: Scores | None = None  # what clients have added to the scores of the last round, afterwards
        self.traffic: dict[str, dict[str, int]] = {"up": {}, "down": {}}  # bytes so far, by the name of the tensor
        self.limits = ReplyLimits(job, note)  # on what a single reply can do
        self._net: tuple[Model, Tensor] | None = None  # made when a part first asks for it
        self._declared: dict[str, bool] = {}  # names of the state, and whether it goes out with every request
        with named_errors("Before the first round"):
            for part in job.method.parts:
                declared = part.server_state(self)
                if not isinstance(declared, dict) or not all(isinstance(each, State) for each in declared.values()):
                    raise wrong_return(part, "server_state", declared, "a dict of State")
                for name, state in declared.items():
                    self.state[name], self._declared[name] = state.tensor, state.broadcast
            self.expected = job.expected("round")
        self.uploads = UploadSums(job.uploads)  # what parts have had clients send in the round under way
        engine.expect("train", self.expected)

    # -- the loop over rounds ------------------------------------------------------------------------------------------
    def train(self, finished: Callable[[RoundRecord], None], progress: Progress) -> None:
        """Run the rounds that are left; `finished` is called after each, `progress` after each client."""
        settings = self.job.settings
        for round in range(self.round + 1, settings.rounds + 1):
            with named_errors(f"Round {round}, server"):
                record = self.run_round(round, progress)
            self.round = round
            if (settings.eval_every and round % settings.eval_every == 0) or round == settings.rounds:
                record.scores = self.last_scores = self.engine.evaluation.after_round(self)
            for observer in self.observers:
                observer.end(self, record)
            finished(record)

    def run_round(self, round: int, progress: Progress) -> RoundRecord:
        """One round: choose clients, send the model, merge what comes back."""
        began = time.perf_counter()
        self.figures, self.last_scores, self.problems = {}, None, []
        clients = self.select_clients(round)
        request = self.build_request("train", round)
        merger, prepares = self.merger(), bool(self.job.method.parts_with("before_merge"))
        keeps = prepares or not self.sums_updates
        self.limits.begin(clients)
        self.uploads = UploadSums(self.job.uploads)
        buffers = RunningMean(self.layout.size - self.layout.trainable)
        losses = RunningMean(1)
        record = RoundRecord(round, float("nan"), float(request.numbers["lr"]), len(clients))
        record.bytes_down = self.count("down", request, len(clients))
        for observer in self.observers:
            observer.begin(self, clients)
        accepted = lost = 0
        waiting: list[WeightedReply] = []  # for parts that change updates before they are merged

        def merge(reply: Message, weight: float) -> None:
            merger.add(reply, weight)
            buffers.add(reply.tensors["update"][self.layout.trainable :], weight)

        def take(reply: Message) -> None:
            nonlocal accepted
            represented, reply = self.engine.represented_clients(reply), self.clip_update(reply)
            accepted += len(represented)
            self.engine.mark_merged(represented, round)
            weight = self.weight(reply)
            kept = owned(reply) if keeps else reply
            if prepares:
                waiting.append((kept, weight))
            else:
                merge(kept, weight)
            losses.add(torch.tensor([float(reply.numbers["loss"])]), self.limits.samples(reply))
            self.uploads.add(reply, weight)
            for observer in self.observers:
                observer.on_reply(reply)

        summed = False  # whether a reply stands for all clients
        for done, reply in enumerate(self.engine.run(request, clients), start=1):
            record.bytes_up += self.count("up", reply)
            lost += reply.kind == LOST
            summed = summed or reply.unit == ALL
            if self.accepts(reply, request, self.expected):
                for each in self.limits.admit(reply):
                    take(each)
            progress(done, len(clients))
        for each in self.limits.close():
            take(each)
        self.problems += self.limits.dropped
        record.dropped = len(clients) - accepted
        if self.limits.bounded:
            self.figures["samples_bounded"] = len(self.limits.bounded)
        given_up = summed and bool(self.limits.dropped)  # one member can spoil a sum: that must not end the run
        if accepted == 0 and lost < len(clients) and not given_up:
            self.blame_uploads(round)
            raise DivergedError(
                f"Round {round}: not one of {len(clients)} updates could be used; start again with a smaller lr "
                f"(now {record.lr:g}) or with clip = 10."
            )
        if lost:
            self.figures["lost"] = lost
        record.late = self.engine.evaluation.late(self)
        self.report_privacy(round)
        record.figures = self.figures
        if accepted == 0:
            self.note(f"Round {round} is given up: no update could be added up, and the model stays as it is.")
            record.seconds = time.perf_counter() - began
            return record
        for reply, weight in self.prepared(waiting):
            merge(reply, weight)
        self.apply_update(*self.checked_step(merger.finish(), buffers.mean()))
        if not all_finite(self.model):  # no client could train on it, and nodes would refuse it
            raise DivergedError(
                f"Round {round}: the mean of {accepted} updates is too large for the weights' type; start again with a "
                f"smaller lr (now {record.lr:g}) or with clip = 10."
            )
        for part in self.job.method.parts_with("after_merge"):
            part.after_merge(self, accepted)
        record.loss = float(losses.mean())
        record.seconds = time.perf_counter() - began
        return record

    def blame_uploads(self, round: int) -> None:
        """Say so where every reply was refused for what a part uploads: a smaller learning rate would not help."""
        names = {name for name in self.job.uploads for problem in self.problems if problem.startswith(f"{name} ")}
        if names and not any(problem.startswith("update ") for problem in self.problems):
            name = sorted(names)[0]
            part = self.job.upload_owners[name]
            raise RunError(
                f"Round {round}: every reply was refused for {name!r} of the part {part!r}: {self.problems[0]}."
            )

    # -- its steps -----------------------------------------------------------------------------------------------------
    def select_clients(self, round: int) -> list[int]:
        """The clients of a round, largest first: long work starts early; updates are merged in this order too."""
        total = len(self.job.federation)
        count = self.job.clients_per_round
        chosen = np.arange(total)
        if count < total:
            private = self.job.settings.privacy_clip is not None
            seed = seed_for(self.job.settings.seed, "clients", round)
            draw = secret_generator(self.job.folder, round) if private else np.random.default_rng(seed)
            chosen = draw.choice(total, count, replace=False, shuffle=False)
        clients: Sequence[int] = self.job.largest_first(chosen)
        for part in self.job.method.parts_with("select_clients"):
            clients = part.select_clients(self, round, clients)
            if not clients or not {*clients} <= {*range(total)}:
                raise RunError(
                    f"The part {part.name!r} selects the clients {list(clients)[:10]}; use some of 0 to {total - 1}."
                )
        return list(clients)

    def build_request(self, kind: str, round: int) -> Message:
        """What goes out to the clients: the model and what parts add."""
        tensors = {"model": self.model, **{f"fixed/{name}": value for name, value in self.fixed_overrides.items()}}
        tensors |= {name: self.state[name] for name, broadcast in self._declared.items() if broadcast}
        # The schedule is one of rounds; what comes after them starts from the learning rate itself.
        lr = self.learning_rate(round) if kind == "train" else self.job.settings.lr
        return Message(kind, round, -1, tensors, {"lr": lr})

    def learning_rate(self, round: int) -> float:
        """The clients' learning rate in a round."""
        settings = self.job.settings
        return settings.lr * Schedule.read(settings.lr_schedule).factor(round, settings.rounds)

    def merger(self) -> Merger:
        """What takes the round's updates: a part's own merger, or a running mean from which a part makes the step."""
        part = self.job.method.slot("merge")
        if self.sums_updates:
            return MeanMerger(
                self.layout.trainable, lambda updates: part.server_step(self, updates), self.server_noise()
            )
        merger = part.merger(self)
        if not (hasattr(merger, "add") and hasattr(merger, "finish")):
            raise wrong_return(part, "merger", merger, "an object with 'add' and 'finish'")
        return merger

    def prepared(self, replies: Sequence[WeightedReply]) -> Sequence[WeightedReply]:
        """The round's replies as parts want them merged."""
        for part in self.job.method.parts_with("before_merge") if replies else ():
            replies = part.before_merge(self, replies)
            if not replies or not all(isinstance(reply, Message) for reply, _ in replies):
                raise wrong_return(part, "before_merge", replies, "a list of replies with their weights")
        return replies

    def checked_step(self, step: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The step that a part has made, and the change of the buffers: its own, or their mean."""
        part = self.job.method.slot("merge")
        hook = "server_step" if self.sums_updates else "merger"
        if returned_tensor(step, part, hook).shape == (self.layout.size,):
            return step[: self.layout.trainable], step[self.layout.trainable :]
        if step.shape != (self.layout.trainable,):
            shape = tuple(step.shape)
            raise RunError(
                f"{place(type(part))}.{hook} gave a step of shape {shape}, not ({self.layout.trainable},): cut updates "
                "to [: server.layout.trainable]."
            )
        return step, buffers

    @property
    def sums_updates(self) -> bool:
        """Whether the method needs no more of the updates than their weighted sum."""
        return bool(self.job.method.parts_with("server_step"))

    def count(self, way: str, message: Message, times: int = 1) -> int:
        """The bytes of a message, which are added to what was sent in this way before."""
        total, sent = 0, self.traffic[way]
        if way == "up" and message.unit == ALL:  # a sum was made of masked vectors, which belong to no part
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
        """Whether a reply may be used; if not, the reason is noted."""
        if self.is_lost(reply, request):
            return False
        limit = self.engine.sample_limit(reply.unit)
        problem = validate_reply(reply, request, expected, limit)
        if problem is not None:
            self.problems.append(problem)
            self.note(f"Round {request.round}: the reply of client {reply.unit} was refused: {problem}.")
        return problem is None

    def is_lost(self, reply: Message, request: Message) -> bool:
        """Whether a reply never came; if so, the reason is noted."""
        if reply.kind == LOST:
            name = self.job.federation.names[reply.unit]
            self.note(f"Round {request.round}, {request.kind}: no reply of client {name}: {reply.numbers['reason']}.")
        return reply.kind == LOST

    def weight(self, reply: Message) -> float:
        """A client's weight in the mean, or that of all for which a reply stands."""
        if self.job.settings.weighting == "samples":
            return self.limits.samples(reply)
        return float(len(self.engine.represented_clients(reply)))

    def clip_update(self, reply: Message) -> Message:
        """The reply with its update no longer than the privacy settings allow, where the server sees single ones."""
        settings = self.job.settings
        if settings.privacy_clip is None or settings.secure or settings.privacy_at == "node":
            return reply
        return replace(reply, tensors={"update": clipped(reply.tensors["update"], settings.privacy_clip)})

    def server_noise(self) -> Tensor | None:
        """Noise that hides single clients in the sum of updates, where the server adds it."""
        settings = self.job.settings
        if settings.privacy_clip is None or settings.privacy_at != "server":
            return None
        return noise(self.layout.trainable, settings.privacy_clip * settings.privacy_noise, fresh_generator())

    def report_privacy(self, round: int) -> None:
        """Report the privacy spent so far."""
        settings = self.job.settings
        if settings.privacy_clip is None:
            return
        at_server = settings.privacy_at == "server"
        drawn, clients = self.job.clients_per_round, len(self.job.federation)
        self.figures["epsilon"] = epsilon(
            settings.privacy_noise, settings.privacy_delta, round, drawn, clients, at_server
        )

    def apply_update(self, step: Tensor, buffers: Tensor) -> None:
        """Add a step to the trainable weights and the mean change to the buffers, rounding once."""
        change = torch.cat([step.double(), buffers.double()])
        self.model = (self.model.double() + change).float()

    # -- after the last round ------------------------------------------------------------------------------------------
    def conclude(self, progress: Progress) -> Scores:
        """The server stage, the client stage, and the final scores."""
        stage = self.job.method.optional_slot("server_stage")
        if stage is not None:
            self.late = self.engine.evaluation.before_stage(self)
            shapes = self.job.expected("statistics")
            self.engine.expect("statistics", shapes)
            before = (self.model.clone(), dict(self.fixed_overrides), dict(self.state))
            with named_errors("Server stage"):
                stage.server_stage(self, self.ask_everyone("statistics", shapes, progress))
            self.last_scores = None
            if not all(all_finite(tensor) for tensor in (self.model, *self.fixed_overrides.values())):
                self.model, self.fixed_overrides, self.state = before
                self.note(
                    f"{stage.name} gave NaN or infinite weights, from statistics that are too large or do not suffice; "
                    "the model stays as the last round has left it."
                )
        with named_errors("Client stage"):
            return self.engine.evaluation.final(self, progress)

    def ask_everyone(self, kind: str, expected: dict[str, torch.Size], progress: Progress) -> Iterator[Message]:
        """Every client's usable reply to a request, one by one; it is sent only when the first is asked for."""
        request = self.build_request(kind, self.round + 1)
        everyone = self.job.largest_first(np.arange(len(self.job.federation)))
        for done, reply in enumerate(self.engine.run(request, everyone), start=1):
            if self.accepts(reply, request, expected):
                yield reply
            progress(done, len(everyone))

    # -- what parts use ------------------------------------------------------------------------------------------------
    @property
    def current_round(self) -> int:
        """The number of the round under way."""
        return self.round + 1

    @property
    def lr(self) -> float:
        """The clients' learning rate in the round under way."""
        return self.learning_rate(self.current_round)

    def total(self, name: str) -> Tensor:
        """The sum over this round's replies of an upload that is declared as `sum` or `weighted_sum`, in float64."""
        return self.uploads.total(name)

    def each(self, name: str) -> list[Tensor]:
        """What each client of this round sent of an upload that is declared as `each`, in the order of the clients."""
        return self.uploads.each(name)

    @property
    def weight_of_all(self) -> float:
        """The sum of the weights of all clients, whether or not they take part in the round."""
        by_samples = self.job.settings.weighting == "samples"
        return self.limits.samples_of_all() if by_samples else float(len(self.job.federation))

    def tensor(self, name: str) -> Tensor:
        """A tensor of the model by name, as the server has it."""
        shared = self.layout.views(self.model)
        if name in shared:
            return shared[name]
        return self.fixed_overrides.get(name, named_tensors(self.job.template)[name].detach())

    def set_tensor(self, name: str, value: Tensor) -> None:
        """Set a tensor of the model, shared or fixed; clients get it with the next request."""
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
        for name in sorted(self.state.keys() - self._declared):
            first = name.partition("/")[0]
            part = f"The part {first!r}" if any(each.name == first for each in self.job.method.parts) else "A part"
            raise RunError(
                f"{part} keeps {name!r} in server.state without declaring it; return it "
                f"from the part's 'server_state': {{{name!r}: State(...)}}."
            )
        named = {"state": self.state, "replaced": self.fixed_overrides, "network": self.engine.state()}
        named["limits"] = self.limits.state()
        return {"model": self.model} | {f"{kind}/{name}": t for kind, ts in named.items() for name, t in ts.items()}

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on after a round from what `tensors` gave."""

        def named(kind: str) -> dict[str, Tensor]:
            return {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}

        self.model = tensors["model"]
        kept = named("state/")
        changed = sorted(kept.keys() ^ self._declared.keys())
        if changed:
            self.note(
                f"The method's state on the server has changed ({', '.join(changed[:5])}): what is new starts anew."
            )
        self.state |= {name: tensor for name, tensor in kept.items() if name in self._declared}
        self.fixed_overrides = named("replaced/")
        self.engine.restore(named("network/"))
        self.limits.restore(named("limits/"))
        self.round = round


def owned(reply: Message) -> Message:
    """The reply with tensors of its own, for mergers that keep them: an engine reuses the memory of those it lends."""
    return replace(reply, tensors={name: tensor.clone() for name, tensor in reply.tensors.items()})
