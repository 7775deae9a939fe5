"""The server's side: the one loop over rounds, for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedframe.core.aggregation import BLOCK, MeanMerger, UploadSums
from fedframe.core.engine import Engine
from fedframe.core.evaluation import Scores
from fedframe.core.hook_errors import call_in_place, checked_merger, named_errors, returned_tensor, wrong_return
from fedframe.core.job import Job
from fedframe.core.kept_statistics import request_digest
from fedframe.core.message import ALL, CULPRIT, LOST, STAGE, Message, all_finite, validate_reply
from fedframe.core.part import Merger, State
from fedframe.core.part_check import class_location
from fedframe.core.privacy import epsilon_spent, secret_generator, server_noise, withholds_figures
from fedframe.core.round_merge import RoundMerge
from fedframe.core.round_record import Observer, RoundRecord
from fedframe.core.server_view import ServerView
from fedframe.core.stage_costs import StageCost, StageCosts
from fedframe.errors import DivergedError, RunError
from fedframe.util.seeds import seed_for

Progress = Callable[[int, int], None]


class Server(ServerView):
    """The server: it runs the rounds, and the stages after the last round."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        note: Callable[[str], None] = print,
        observers: Sequence[Observer] = (),
    ) -> None:
        job = engine.server_job(job)
        super().__init__(job, note)
        self.engine = engine  # reaches the clients: in this process, in others, or over a network
        self.observers = observers  # are called after every round
        self._broadcast: list[str] = []  # names of the state that goes out with every request
        self.problems: list[str] = []  # why replies of the round under way were refused
        self.culprit: str | None = None  # the hook that NaN or infinite values of a client come from, if known
        self.last_scores: Scores | None = None  # of the model as it stands
        self.late: Scores | None = None  # what clients have added to the scores of the last round, afterwards
        self.traffic: dict[str, dict[str, int]] = {"up": {}, "down": {}}  # bytes so far, by the name of the tensor
        self.stages = StageCosts()  # what was sent and received after the last round
        with named_errors("Before the first round"):
            for part in job.method.parts:
                declared = part.server_state(self)
                if not isinstance(declared, dict) or not all(isinstance(each, State) for each in declared.values()):
                    raise wrong_return(part, "server_state", declared, "a dict of State")
                self.state.declare(part, declared)
                self._broadcast += [name for name, state in declared.items() if state.broadcast]
            self.expected = job.expected("round")
            _ = job.memory_names  # a name that two parts have is refused before any client works
        self.uploads = UploadSums(job.uploads)
        engine.expect("train", self.expected)

    # -- the loop over rounds ------------------------------------------------------------------------------------------
    def train(self, finished: Callable[[RoundRecord], None], progress: Progress) -> None:
        """Run the rounds that are left. `finished` is called after each round, `progress` after each client."""
        settings = self.job.settings
        for round in range(self.round + 1, settings.rounds + 1):
            self.culprit = None
            before, version = self.model, self.model._version  # a step makes a new vector; a part may change the old
            with named_errors(f"Round {round}, server"):
                record = self.run_round(round, progress)
            still = before._version == version and torch.equal(before, self.model)
            if len(before) and record.dropped < record.clients and still:
                self.note(f"Round {round}: the shared model has not changed at all: every update, or their mean, is 0.")
            self.state.check_all(round)
            self.round = round
            if (settings.eval_every and round % settings.eval_every == 0) or round == settings.rounds:
                record.scores = self.last_scores = self.engine.evaluation.after_round(self)
            for observer in self.observers:
                observer.end(self, record)
            finished(record)

    def run_round(self, round: int, progress: Progress) -> RoundRecord:
        """Run one round: choose clients, send the model, merge the replies."""
        began, settings = time.perf_counter(), self.job.settings
        self.figures, self.last_scores, self.problems = {}, None, []
        clients = self.select_clients(round)
        request = self.build_request("train", round)
        merge = RoundMerge(self, clients)
        self.uploads = UploadSums(self.job.uploads)
        record = RoundRecord(round, float("nan"), float(request.numbers["lr"]), len(clients))
        record.bytes_down = self.count("down", request, len(clients))
        for observer in self.observers:
            observer.begin(self, clients)
        lost = 0
        for done, reply in enumerate(self.engine.run(request, clients), start=1):
            record.bytes_up += self.count("up", reply)
            lost += reply.kind == LOST
            if self.accepts(reply, request, self.expected):
                merge.add(reply)
            progress(done, len(clients))
        merge.close()
        record.dropped = len(clients) - merge.clients + merge.diverged
        if merge.clients == 0 and lost < len(clients) and not merge.spoilt:
            self.blame_uploads(round)
            raise DivergedError(
                f"Round {round}: not one of {len(clients)} updates could be used; start again with a smaller lr "
                f"(now {record.lr:g}) or with clip = 10."
            )
        if lost:
            self.figures["lost"] = lost
        record.late = self.engine.evaluation.late(self)
        if settings.privacy_clip is not None:
            self.figures["epsilon"] = epsilon_spent(self.job, round)
        record.figures = self.figures
        if merge.clients == 0:
            self.note(f"Round {round} is given up: no update could be added up, and the model stays as it is.")
            record.seconds = time.perf_counter() - began
            return record
        self.apply_update(*merge.step())
        if not all_finite(self.model):  # no client could train on it, and nodes would refuse it
            raise DivergedError(
                f"Round {round}: the mean of {merge.clients} updates is too large for the weights' type; start again "
                f"with a smaller lr (now {record.lr:g}) or with clip = 10."
            )
        for part in self.job.method.parts_with("after_merge"):
            call_in_place(part, "after_merge", self, merge.clients)
        record.loss = merge.mean_loss
        record.seconds = time.perf_counter() - began
        return record

    def blame_uploads(self, round: int) -> None:
        """Say so where every reply was refused for what a part uploads: a smaller learning rate would not help."""
        if self.culprit is not None:
            raise DivergedError(f"Round {round}: not one update could be used: {self.culprit}.")
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
            selected = part.select_clients(self, round, clients)
            if not isinstance(selected, Iterable):
                raise wrong_return(part, "select_clients", selected, "a list of clients")
            clients = [int(client) for client in selected]
            if not clients or not {*clients} <= {*range(total)} or len({*clients}) < len(clients):
                raise RunError(
                    f"The part {part.name!r} selects the clients {clients[:10]}; use some of 0 to {total - 1}, each "
                    "once."
                )
        return list(clients)

    def build_request(self, kind: str, round: int) -> Message:
        """What goes out to the clients: the model and what parts add."""
        tensors = {"model": self.model, **{f"fixed/{name}": value for name, value in self.fixed_overrides.items()}}
        tensors |= {name: self.state[name] for name in self._broadcast}
        # The schedule is one of rounds; what comes after them starts from the learning rate itself.
        lr = self.learning_rate(round) if kind == "train" else self.job.settings.lr
        return Message(kind, round, -1, tensors, {"lr": lr})

    def merger(self) -> Merger:
        """What takes the round's updates: a part's own merger, or a running mean from which a part makes the step."""
        part = self.job.method.slot("merge")
        if self.sums_updates:
            noise = server_noise(self.layout.trainable, self.job.settings)
            return MeanMerger(self.layout.trainable, lambda updates: part.server_step(self, updates), noise)
        return checked_merger(part.merger(self), part)

    def checked_step(self, step: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The step that a part has made, and the change of the buffers: its own, or their mean."""
        part = self.job.method.slot("merge")
        hook = "server_step" if self.sums_updates else "merger"
        if returned_tensor(step, part, hook).shape == (self.layout.size,):
            return step[: self.layout.trainable], step[self.layout.trainable :]
        if step.shape != (self.layout.trainable,):
            shape = tuple(step.shape)
            raise RunError(
                f"{class_location(type(part))}.{hook} gave a step of shape {shape}, not ({self.layout.trainable},): "
                "cut updates to [: server.layout.trainable]."
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
        numbers = self.job.numbers if request.kind == "train" else ()
        withheld = withholds_figures(self.job.settings)
        problem = validate_reply(reply, request, expected, limit, numbers, withheld)
        if problem is not None:
            self.problems.append(problem)
            self.culprit = self.culprit or (str(reply.numbers[CULPRIT]) if CULPRIT in reply.numbers else None)
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

    def apply_update(self, step: Tensor, buffers: Tensor) -> None:
        """Add a step to the trainable weights and the mean change to the buffers, rounding once."""
        moved = torch.empty_like(self.model)
        ends = (len(step), len(self.model))
        for change, first, last in ((step, 0, ends[0]), (buffers, *ends)):
            for start in range(first, last, BLOCK):  # by blocks: a large model in float64 takes twice its memory
                stop = min(start + BLOCK, last)
                moved[start:stop] = self.model[start:stop].double() + change[start - first : stop - first].double()
        self.model = moved

    # -- after the last round ------------------------------------------------------------------------------------------
    def conclude(self, progress: Progress) -> Scores:
        """The server stage, the client stage, and the final scores."""
        stage, finishing = self.job.method.optional_slot("server_stage"), self.job.method.parts_with("after_rounds")
        if stage is not None or finishing:
            self.late = self.engine.evaluation.before_stage(self)
        with named_errors("After the last round"):
            for part in finishing:
                call_in_place(part, "after_rounds", self)
                self.last_scores = None
        if stage is not None:
            before = (self.model.clone(), dict(self.fixed_overrides), dict(self.state))
            with named_errors("Server stage"), self.stages.measure("server_stage"):
                for number in range(self.job.stages):
                    self.stage, shapes = number, self.job.expected("statistics", number)
                    self.engine.expect("statistics", shapes)
                    call_in_place(stage, "server_stage", self, self.ask_everyone("statistics", shapes, progress))
            self.last_scores = None
            if not all(all_finite(tensor) for tensor in (self.model, *self.fixed_overrides.values())):
                self.model, self.fixed_overrides, self.state.values_by_name = before
                self.note(
                    f"{stage.name} gave NaN or infinite weights, from statistics that are too large or do not suffice; "
                    "the model stays as the last round has left it."
                )
        with named_errors("Client stage"):
            return self.engine.evaluation.final(self, progress)

    def ask_everyone(self, kind: str, expected: dict[str, torch.Size], progress: Progress) -> Iterator[Message]:
        """Every client's usable reply to a request, one by one; it is sent only when the first is asked for."""
        request = self.build_request(kind, self.round + 1)
        if kind == "statistics" and self.stage:
            request = replace(request, numbers={**request.numbers, STAGE: self.stage})
        everyone = self.job.everyone
        if kind == "statistics":
            self.request_digest = request_digest(self.job, request)
        # Measures are scoring, which is not counted, as in rounds.
        cost = self.stages.setdefault("server_stage", StageCost()) if kind == "statistics" else StageCost()
        cost.sent(request, len(everyone))
        for done, reply in enumerate(self.engine.run(request, everyone), start=1):
            cost.received(reply)
            if self.accepts(reply, request, expected):
                yield reply
            progress(done, len(everyone))

    # -- what must not be lost -----------------------------------------------------------------------------------------
    def tensors(self) -> dict[str, Tensor]:
        """All that a resumed run needs of the server."""
        named = {"state": self.state, "replaced": self.fixed_overrides, "network": self.engine.state()}
        named["limits"] = self.limits.state()
        return {"model": self.model} | {f"{kind}/{name}": t for kind, ts in named.items() for name, t in ts.items()}

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on after a round from what `tensors` gave."""

        def named(kind: str) -> dict[str, Tensor]:
            return {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}

        self.model = tensors["model"]
        kept = named("state/")
        changed = sorted(kept.keys() ^ set(self.state.names))
        if changed:
            self.note(
                f"The method's state on the server has changed ({', '.join(changed[:5])}): new state starts afresh."
            )
        # Unchecked: the state of a run may be larger than that of a new client's, who has no others beside it.
        self.state.values_by_name |= {name: tensor for name, tensor in kept.items() if name in self.state.names}
        self.fixed_overrides = named("replaced/")
        self.engine.restore(named("network/"))
        self.limits.restore(named("limits/"))
        self.round = round
