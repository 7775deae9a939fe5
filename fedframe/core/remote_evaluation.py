"""Scores of clients behind a network: they alone have their test data, and messages to them are expensive.

So a client scores a model when it receives the model anyway, before it trains on. The scores of round r arrive with
round r + 1, and are added to the line of round r then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fedframe.core.client_runtime import NO_SCORE
from fedframe.core.evaluation import (
    ByClient,
    Scores,
    has_own_models,
    measured_scores,
    personal_scores,
    score_generic,
    with_client,
    with_personal,
)
from fedframe.core.measures import Evidence, bounds_of
from fedframe.core.message import LAST, LOST, Message
from fedframe.core.node_gain import read_gain
from fedframe.core.privacy import withholds_figures
from fedframe.core.stage_costs import StageCost
from fedframe.core.target_measures import evidence_size, is_plausible_sum, summed_evidence

if TYPE_CHECKING:
    from fedframe.core.job import Job
    from fedframe.core.server import Server

NAMES = ("hits", "samples", "diverged")  # what a client counts; the last only of a model that it has just made
SCORES = ("value", "error")  # the run's metric with its error, where it is not accuracy
# What is summed over clients under secure aggregation: how many have a score, their scores, these times their test
# samples, the test samples, and how many own models have diverged.
SUMMED_COUNTS = ("scored", "scores", "weighted", "samples", "diverged")
TALLIES = {"tally/shared": "client", "tally/personal": "personal"}  # what a client's tallies are tallies of
ALL = -1  # the unit of a reply that stands for several clients


class Piggyback(Protocol):
    """An engine that can have clients do more with a model that is sent to them anyway."""

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """As `Engine.run`; with no units, only what was asked for by `piggyback` is done."""

    def piggyback(self, kind: str, clients: Sequence[int]) -> None:
        """With the next request, and before it is performed, these clients do this too with the model it brings."""

    def expect(self, kind: str, shapes: Mapping[str, torch.Size]) -> None:
        """As `Engine.expect`."""

    def represented_clients(self, reply: Message) -> list[int]:
        """As `Engine.represented_clients`."""

    def awaits(self) -> bool:
        """Whether something was asked for by `piggyback` that no request has taken along yet."""

    def pop_replies(self, kind: str) -> list[Message] | None:
        """What the last request brought back of this kind, once; None if it was not asked for."""


class RemoteEvaluation:
    """Clients score a model when it is sent to them anyway."""

    def __init__(self, engine: Piggyback) -> None:
        self.engine = engine

    def after_round(self, server: Server) -> Scores:
        """Score the shared model on the global test set; what clients measure comes with the next round."""
        self.resume(server)
        return score_generic(server)[0]

    def resume(self, server: Server) -> None:
        """Have the watched clients score the model as it stands when it is sent to them the next time."""
        if withholds_figures(server.job.settings):
            return
        watched = [int(client) for client in server.job.watched]
        if server.job.shares_a_model:
            self.engine.piggyback("client", watched)
        if has_own_models(server.job):
            self.engine.piggyback("own", watched)

    def late(self, server: Server) -> Scores | None:
        """What clients have measured of the model that the last request brought them; None if they were not asked."""
        request = server.build_request("client", server.round + 1)
        shared, own = self.engine.pop_replies("client"), self.engine.pop_replies("own")
        if shared is None and own is None:
            return None
        if server.job.settings.secure:
            scores = summed_scores(server, Scores(), "client", shared or ())
            return scores if own is None else summed_scores(server, scores, "personal", own)
        # A client that did not reply to the request itself has been named by now.
        received, own_received = ([reply for reply in replies or () if reply.kind != LOST] for replies in (shared, own))
        scores = client_scores(server, Scores(), usable(server, request, received))
        if own is None:
            return scores
        fine = usable(server, replace(request, kind="own"), own_received)
        return with_personal(scores, scores_of_own(server, fine))

    def before_stage(self, server: Server) -> Scores | None:
        """Late scores of the model as it stands, by a message of their own."""
        if not self.engine.awaits():
            return None
        for _ in self.engine.run(server.build_request("client", server.round + 1), ()):
            pass
        return self.late(server)

    def final(self, server: Server, progress: Callable[[int, int], None]) -> Scores:
        """Clients score the final model when it is sent to them, and make their own with the same request."""
        job = server.job
        if withholds_figures(job.settings):
            return self.final_without_figures(server, progress)
        scores = server.last_scores if server.last_scores is not None else score_generic(server)[0]
        everyone = [int(client) for group in job.personal_groups for client in group]
        kind = "personalise" if job.settings.personal else "client"
        if kind == "personalise" and job.shares_a_model:
            self.engine.piggyback("client", job.federation.present.tolist())
        request = server.build_request(kind, server.round + 1)
        if not job.settings.score_bins:
            request = replace(request, numbers={**request.numbers, LAST: 1})
        units = everyone if kind == "personalise" else job.federation.present.tolist() if job.shares_a_model else ()
        with server.stages.measure("client_stage") if kind == "personalise" else nullcontext(StageCost()) as cost:
            cost.sent(request, len(units))
            replies = [*counted(self.engine.run(request, units), progress, len(units))]
        for reply in replies:
            if reply.unit == ALL:
                cost.received(reply)
            else:
                cost.add("up", "counts", reply.nbytes)
        fine = usable(server, request, replies) if not job.settings.secure else []
        last = self.late(server)
        if server.late is None:  # no server stage: the model of the last round is the final one
            server.late = last
        pooled = self.gather_tallies(server) if job.settings.score_bins else {}
        last_replies = self.end_run(server) if job.settings.score_bins else replies
        if job.settings.secure:
            if last is not None and last.client is not None:
                scores = with_mean(scores, "client", last.client, last.client_weighted, last.client_count)
            scores = summed_scores(server, scores, "client" if kind == "client" else "personal", replies)
        elif kind == "client":
            scores = client_scores(server, scores, fine)
        else:
            own = scores_of_own(server, fine)
            if last is not None and "client" in last.by_client:
                scores = with_client(scores, last.by_client["client"])
            scores = with_personal(scores, own) if own.by_client else scores
        metric = job.settings.score_metric
        told = {reply.unit: said for reply in last_replies if (said := read_gain(reply.numbers, metric)) is not None}
        return replace(scores, pooled={**scores.pooled, **pooled}, told=told)

    def final_without_figures(self, server: Server, progress: Callable[[int, int], None]) -> Scores:
        """Clients make their own models and keep them; how these do has no noise, and does not leave."""
        job = server.job
        kind = "personalise" if job.settings.personal else "end"
        request = server.build_request(kind, server.round + 1)
        request = replace(request, numbers={**request.numbers, LAST: 1})
        with server.stages.measure("client_stage") if job.settings.personal else nullcontext(StageCost()) as cost:
            cost.sent(request, len(job.everyone))
            for reply in counted(self.engine.run(request, job.everyone), progress, len(job.everyone)):
                server.is_lost(reply, request)
        return server.last_scores if server.last_scores is not None else score_generic(server)[0]

    def gather_tallies(self, server: Server) -> dict[str, Evidence]:
        """Pooled predictions from the clients' tallies: they are summed, under secure aggregation by the clients."""
        job = server.job
        classes, bins, target = job.template.classes, job.settings.score_bins, job.target
        shapes = {name: torch.Size([evidence_size(target, classes, bins)]) for name in TALLIES}
        self.engine.expect("measure", shapes)
        sums = {name: torch.zeros(size, dtype=torch.float64) for name, size in shapes.items()}
        for reply in server.ask_everyone("measure", shapes, lambda done, total: None):
            represented = self.engine.represented_clients(reply)
            most = sum(len(job.federation.local_test[client]) for client in represented)
            if not all(is_plausible_sum(target, reply.tensors[name], classes, bins, most) for name in TALLIES):
                who = reply.unit if reply.unit != ALL else "all, summed,"
                server.note(f"The score histograms of client {who} were refused: their counts are impossible.")
                continue
            for name in TALLIES:
                sums[name] += reply.tensors[name].double()
        found = {TALLIES[name]: summed_evidence(target, vector, classes, bins) for name, vector in sums.items()}
        return {score: evidence for score, evidence in found.items() if evidence.samples}

    def end_run(self, server: Server) -> list[Message]:
        """Tell the nodes that the run is over, once nothing is left to unmask; their last replies."""
        request = server.build_request("end", server.round + 1)
        request = replace(request, numbers={**request.numbers, LAST: 1})
        return [reply for reply in self.engine.run(request, server.job.everyone) if reply.kind != LOST]


def scored_with(job: Job, round: int) -> list[str]:
    """The scores that the agreed program asks for with the training of a round, however often it was resumed."""
    every = job.settings.eval_every
    if withholds_figures(job.settings) or round < 2 or not every or (round - 1) % every:
        return []
    return [*(["client"] if job.shares_a_model else []), *(["own"] if has_own_models(job) else [])]


def summed_scores(server: Server, scores: Scores, what: str, replies: Iterable[Message]) -> Scores:
    """The scores with a mean over clients of which only the sum is known, if it has come and can be one."""
    for reply in replies:
        if reply.kind == LOST or "counts" not in reply.tensors:
            continue
        found = dict(zip(SUMMED_COUNTS, reply.tensors["counts"].double().tolist(), strict=True))
        most, slack = len(server.job.federation), 1e-6
        low, high = bounds_of(server.job.settings.score_metric)
        count, samples = found["scored"], found["samples"]
        fine = within(found["scores"], low, high, count, slack) and -slack <= count <= most + slack
        fine = fine and within(found["weighted"], low, high, samples, slack) and 0 <= found["diverged"] <= most
        if not fine:
            server.note(f"Round {reply.round}, {reply.kind}: the summed counts of the clients were refused.")
            continue
        count = round(found["scored"])
        if not count:
            continue
        scores = with_mean(scores, what, found["scores"] / count, found["weighted"] / found["samples"], count)
        if diverged := round(found["diverged"]):
            server.note(f"Personal models that came out with NaN or infinite weights: {diverged} of {count}.")
            scores = replace(scores, personal_diverged=diverged)
    return scores


def within(total: float, low: float, high: float, count: float, slack: float) -> bool:
    """Whether a sum can be that of so many scores between two bounds."""
    below = low * count if math.isfinite(low) else low
    above = high * count if math.isfinite(high) else high
    return math.isfinite(total) and count >= -slack and below - slack <= total <= above + slack


def with_mean(scores: Scores, what: str, mean: float, weighted: float | None, count: int) -> Scores:
    """The scores with a mean over clients."""
    if what == "client":
        return replace(scores, client=mean, client_weighted=weighted, client_count=count)
    return replace(scores, personal=mean, personal_weighted=weighted, personal_count=count)


def client_scores(server: Server, scores: Scores, fine: list[Message]) -> Scores:
    """The scores with the shared model's on clients' own test data, from their counts."""
    return with_client(scores, each_of(server, fine)) if fine else scores


def scores_of_own(server: Server, fine: list[Message]) -> Scores:
    """The scores of clients' own models, from those who have sent them."""
    diverged = sum(int(reply.tensors.get("diverged", torch.zeros(())).sum()) for reply in fine)
    return personal_scores(server, each_of(server, fine), diverged)


def each_of(server: Server, fine: list[Message]) -> ByClient:
    """Clients' counts side by side. Labels stay with the clients: there are none by class."""
    hits, sizes = ([int(reply.tensors[name]) for reply in fine] for name in ("hits", "samples"))
    scores = [one for reply in fine for one in measured_scores(reply, server.job.settings.score_metric)]
    return ByClient([reply.unit for reply in fine], hits, sizes, scores or None)


def counted(replies: Iterable[Message], progress: Callable[[int, int], None], total: int) -> Iterator[Message]:
    """The replies, and progress with each."""
    for done, reply in enumerate(replies, start=1):
        progress(done, total)
        yield reply


def usable(server: Server, request: Message, replies: Iterable[Message]) -> list[Message]:
    """The replies with plausible counts; the others are noted."""
    return [reply for reply in replies if usable_hits(server, request, reply)]


def usable_hits(server: Server, request: Message, reply: Message) -> bool:
    """Whether a client's counts are plausible; if not, this is noted."""
    if server.is_lost(reply, request):
        return False
    names = NAMES if reply.kind == "personalise" else NAMES[:2]
    metric = server.job.settings.score_metric
    scored = SCORES if metric != "accuracy" or server.job.target is not None else ()
    fine = reply.kind == request.kind and set(reply.tensors) == {*names, *scored}
    if fine and all(is_count(reply.tensors[n]) for n in names) and (not scored or is_score(reply, metric)):
        hits, samples, diverged = (int(reply.tensors[name]) if name in names else 0 for name in NAMES)
        if 0 <= hits <= samples <= len(server.job.federation.local_test[reply.unit]) and 0 <= diverged <= 1:
            return True
    server.note(f"Round {request.round}, {request.kind}: the counts of client {reply.unit} were refused.")
    return False


def is_score(reply: Message, metric: str) -> bool:
    """Whether a reply has one number that the metric can be, with its error, or what stands for no score."""
    value, error = (reply.tensors[name] for name in SCORES)
    if any(each.dtype != torch.float64 or each.shape != () for each in (value, error)):
        return False
    low, high = bounds_of(metric)
    found = math.isfinite(float(value)) and low <= float(value) <= high and 0 <= float(error) < math.inf
    return found or (float(value) == NO_SCORE and float(error) == NO_SCORE)


def is_count(tensor: Tensor) -> bool:
    """Whether it is one whole number."""
    return tensor.dtype == torch.int64 and tensor.shape == ()
