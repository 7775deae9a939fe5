"""Scores with one meaning each.

generic    accuracy of the shared model on the global test set
client     accuracy of the shared model on each client's own test data, mean over clients
personal   accuracy of each client's own model on its own test data, mean over clients

Means over clients are unweighted; the mean weighted by test samples is given beside them. The setting `metric` puts
another measure (`measures.py`) instead of accuracy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedframe.core.client_runtime import NO_SCORE
from fedframe.core.job import PIECE, Job
from fedframe.core.measures import Evidence, Measured, Predictions, bounds_of, meaning, metric_name, share_of
from fedframe.core.message import Message
from fedframe.core.node_gain import NodeGain
from fedframe.core.stage_costs import COUNTS_BYTES
from fedframe.core.target_measures import Single
from fedframe.settings import REMOTE_DATA

if TYPE_CHECKING:
    from fedframe.core.part import Part
    from fedframe.core.server import Server

SCORE_NAMES = ("generic", "client", "personal")
EASIER_TASK = (
    "do not compare personal with generic: a client with two classes has an easier task than telling all classes "
    "apart; compare it with client, which uses the same test data"
)
NEED_BOTH = ("auroc", "average_precision", "sensitivity", "specificity")  # a client with one class has none of these
DEFINITIONS = {
    "generic": "accuracy of the shared model on the global test set",
    "client": "accuracy of the shared model on each client's own test data, unweighted mean over clients",
    "personal": "accuracy of each client's own model on its own test data, unweighted mean over clients",
    "last": "after the last round (client: over the clients watched between rounds, at most eval_clients)",
    "last_five": "mean of the last five evaluations between rounds (fewer if there were fewer)",
    "final": "of the saved models: after the server stage and, for personal, after the client stage; over all clients "
    "(personal: over at most personal_clients)",
    "weighted": "like final, but the mean is weighted by the clients' test samples",
    "f1": "F1 of each client's own model on its own test data, unweighted mean over its classes, then over "
    "clients; missing where only sums over clients are known",
    "f1_weighted": "like f1, but a client's classes weigh as many as their test samples",
    "spread": "over clients: standard deviation, mean of the worst tenth (rounded up), worst and best",
    "per_group": "like generic final, mean over the classes that are frequent (many: those with the first 75 % of "
    "the training samples), middling (medium: up to 95 %) or rare (few) in the training data",
    "clients": "number of clients in the final mean: those that have test data and have answered (unheard: how many "
    "have not, over a network)",
    "bytes": "of all clients together; bytes_up and bytes_down: in all rounds; bytes_once: what clients get only once "
    "(a frozen classifier); stages: what the stages after the last round add; bytes_up_total and bytes_down_total: "
    "the sum of all; evaluation is not counted",
    "low": "lower end of the 95 % interval of the final score, which reflects that the test samples are a random draw "
    "(for a mean over clients: those of each client; another draw of clients would vary more)",
    "high": "its upper end",
    "samples": "number of test samples behind a score",
    "comparing": EASIER_TASK,
    "none": "null means not measured: the method has no such model between rounds, or there are no test data",
}


def definitions(validate_share: float, metric: str = "accuracy") -> dict[str, str]:
    """What the scores of a run mean; with a validation share no score has seen the test set."""
    found = DEFINITIONS
    if validate_share:
        share = f"{100 * validate_share:g} % of the training data (validation; all test data were put aside)"
        found = {
            **DEFINITIONS,
            "generic": f"accuracy of the shared model on a held-out {share}",
            "client": f"accuracy of the shared model on each client's held-out {share}, unweighted mean over clients",
            "personal": f"accuracy of each client's own model on its held-out {share}, unweighted mean over clients",
        }
    if metric == "accuracy":
        return found
    some = " that have one" if metric in NEED_BOTH else ""
    named = {
        score: f"{metric_name(metric)}{found[score].removeprefix('accuracy')}{some if score != 'generic' else ''}"
        for score in SCORE_NAMES
    }
    return {**found, **named, "metric": f"what scores are: {meaning(metric)}"}


def spoken_definitions(summary: Mapping[str, Any]) -> dict[str, str]:
    """A summary's definitions for people: a federation's clients are sites, and what a node keeps has its name."""
    found: dict[str, str] = dict(summary.get("definitions", {}))
    if summary.get("data") != REMOTE_DATA:
        return found
    for score in SCORE_NAMES:
        text = found.get(score, "")
        if node := summary.get("node"):
            text = re.sub(", unweighted mean over clients( that have one)?$", "", text)
        text = text.replace("client", "site")
        found[score] = text.replace("each site's", f"{node}'s") if node else text
    return found


@dataclass(frozen=True)
class ByClient:
    """A score client by client: whose, on how many test samples, and how many of them are right."""

    clients: Sequence[int]
    hits: Sequence[float]
    samples: Sequence[int]
    scores: Sequence[Measured | None] | None = None  # the run's metric, where it is not accuracy

    def measured(self) -> dict[int, Measured]:
        """The score of every client that has test data with which it has a meaning."""
        if self.scores is not None:
            return {client: one for client, one in zip(self.clients, self.scores, strict=True) if one is not None}
        counted = zip(self.clients, self.hits, self.samples, strict=True)
        return {client: share_of(hits, samples) for client, hits, samples in counted if samples}

    def values(self) -> dict[int, float]:
        """The same without errors."""
        return {client: one.value for client, one in self.measured().items()}

    def means(self) -> tuple[float | None, float | None, int]:
        """Unweighted and weighted mean over the clients that have a score, and how many they are."""
        values = self.values()
        if not values:
            return None, None, 0
        sizes = dict(zip(self.clients, self.samples, strict=True))
        if self.scores is None:
            weighted = sum(self.hits) / sum(self.samples)
        else:
            weighted = sum(v * sizes[k] for k, v in values.items()) / sum(sizes[k] for k in values)
        return sum(values.values()) / len(values), weighted, len(values)


@dataclass(frozen=True)
class Scores:
    """Accuracies between 0 and 1; None where there is nothing to measure them on."""

    generic: float | None = None
    generic_loss: float | None = None
    client: float | None = None
    client_weighted: float | None = None
    client_count: int = 0
    personal: float | None = None
    personal_weighted: float | None = None
    personal_count: int = 0
    personal_diverged: int | None = None  # clients whose stage went wrong; they keep the model it began with
    per_class: tuple[float | None, ...] = ()
    personal_per_class: tuple[float | None, ...] = ()
    by_client: Mapping[str, ByClient] = field(default_factory=dict, repr=False)  # of `client` and `personal`
    pooled: Mapping[str, Evidence] = field(default_factory=dict, repr=False)  # predictions, all clients' together
    told: Mapping[int, NodeGain] = field(default_factory=dict, repr=False)  # by nodes that say what they gain

    def line(self) -> dict[str, Any]:
        """What a round's line of metrics says of them: all that was measured, but not client by client."""
        left_out = ("personal_per_class", "by_client", "pooled", "told")
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        return {name: value for name, value in values.items() if value is not None and value != ()}


def score_round(server: Server) -> Scores:
    """What is measured between rounds: the shared model and, where clients have more than that, their own."""
    scores = score_shared(server, "local")
    if not has_own_models(server.job):
        return scores
    watched = [int(client) for client in server.job.watched]
    return with_personal(scores, score_clients(server, "own", watched, lambda done, total: None, watched))


def has_own_models(job: Job) -> bool:
    """Whether clients have models between rounds that are more than the shared one."""
    return bool(job.roles.private) or job.method.optional_slot("load_personal") is not None


def score_generic(server: Server) -> tuple[Scores, Single]:
    """Score the shared model on the global test set; also what it predicts there."""
    job = server.job
    if not job.shares_a_model:
        return Scores(), empty_predictions(job)
    predictions, loss = predict_set(server, "test")
    score, samples = job.score(predictions), predictions.samples
    scores = Scores(
        generic=score.value if score is not None else None,
        generic_loss=loss / samples if samples else None,
        per_class=recognised(predictions),
        pooled={"generic": predictions} if samples else {},
    )
    return scores, predictions


def score_shared(server: Server, local: str) -> Scores:
    """Score the shared model on the global test set and on clients' own (`local` or `local-all`)."""
    job = server.job
    scores, predictions = score_generic(server)
    if not job.shares_a_model:
        return scores
    if job.federation.local_test_pool == "test":
        found = predictions.of(job.test_rows(local).numpy())  # the same model on the same samples
    else:
        found, _ = predict_set(server, local)
    clients = job.scored_clients(local)
    sizes = job.federation.local_test.sizes()[clients]
    hits = hits_of_clients(torch.from_numpy(found.right), sizes).tolist()
    each = None
    if job.settings.score_metric != "accuracy" or job.target is not None:
        each = [job.score(one) for one in found.split(sizes.tolist())]
    scores = with_client(scores, ByClient(clients.tolist(), hits, sizes.tolist(), each))
    return replace(scores, pooled={**scores.pooled, "client": found}) if found.samples else scores


def with_client(scores: Scores, each: ByClient) -> Scores:
    """The scores with those of the shared model on clients' own test data."""
    mean, weighted, count = each.means()
    return replace(
        scores,
        client=mean,
        client_weighted=weighted,
        client_count=count,
        by_client={**scores.by_client, "client": each},
    )


def by_class(hits: Tensor, totals: Tensor) -> tuple[float | None, ...]:
    """Accuracy of each class; None for one that was not tested."""
    return tuple(float(h / t) if t else None for h, t in zip(hits.double(), totals, strict=True))


def recognised(predictions: Single) -> tuple[float | None, ...]:
    """The share of each class's samples that is recognised; nothing where no classes are learned."""
    if not isinstance(predictions, Predictions):
        return ()
    matrix = torch.from_numpy(predictions.confusion)
    return by_class(matrix.diagonal(), matrix.sum(1))


def empty_predictions(job: Job) -> Single:
    """Predictions of nothing."""
    nothing = torch.empty(0, job.template.classes)
    return job.predictions(nothing, torch.empty(0) if job.target is None else nothing)


def predict_set(server: Server, which: str) -> tuple[Single, float]:
    """The shared model's predictions for a whole test set, and the summed loss."""
    rows = server.job.test_rows(which)
    pieces = -(-len(rows) // PIECE)
    request = server.build_request("score", server.round)
    request = Message("score", request.round, -1, request.tensors, {**request.numbers, "set": which})
    predicted = [torch.empty(0, dtype=torch.int64)]
    probabilities = [torch.empty(0, server.job.template.classes)]
    loss = 0.0
    for reply in server.engine.run(request, range(pieces)):
        predicted.append(reply.tensors["predicted"].long())  # a copy: the reply is only lent
        probabilities.append(reply.tensors["probabilities"].clone())
        loss += float(reply.numbers["loss"])
    if not len(rows):
        return empty_predictions(server.job), loss
    labels = server.job.pool(which).targets[rows]
    return server.job.predictions(torch.cat(probabilities), labels, torch.cat(predicted)), loss


def hits_of_clients(right: Tensor, sizes: Tensor) -> Tensor:
    """How many of each client's test samples are right; samples lie client by client."""
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return torch.bincount(owner, right.double(), minlength=len(sizes))


def score_clients(
    server: Server, kind: str, units: Sequence[int], progress: Callable[[int, int], None], clients: Sequence[int]
) -> Scores:
    """Personal scores: each client (or group of them) says how many of its own test samples are right.

    `clients` are those of all units, in their order.
    """
    request = server.build_request(kind, server.round + 1)
    right: list[int] = []
    sizes: list[int] = []
    class_hits, class_sizes = torch.zeros(2, server.job.template.classes, dtype=torch.int64)
    diverged = 0
    each: list[Measured | None] = []
    probabilities, predicted = list[Tensor](), list[Tensor]()
    for reply in server.engine.run(request, units):
        each += measured_scores(reply, server.job.settings.score_metric)
        if "probabilities" in reply.tensors:
            probabilities.append(reply.tensors["probabilities"].clone())
            predicted.append(reply.tensors["predicted"].clone())
        diverged += int(reply.tensors.get("diverged", torch.zeros(())).sum())
        right += reply.tensors["hits"].sum(-1).reshape(-1).tolist()
        sizes += reply.tensors["samples"].sum(-1).reshape(-1).tolist()
        class_hits += reply.tensors["hits"].reshape(-1, len(class_hits)).sum(0)
        class_sizes += reply.tensors["samples"].reshape(-1, len(class_sizes)).sum(0)
        progress(len(sizes), len(clients))
    scores = personal_scores(server, ByClient(list(clients), right, sizes, each or None), diverged)
    if not scores.by_client:
        return scores
    pooled: dict[str, Evidence] = {}
    if probabilities:
        labels = torch.cat([server.job.local_test(client)[2] for client in clients])
        pooled["personal"] = server.job.predictions(torch.cat(probabilities), labels, torch.cat(predicted))
    per_class = by_class(class_hits, class_sizes) if server.job.target is None else ()
    return replace(scores, personal_per_class=per_class, pooled=pooled)


def measured_scores(reply: Message, metric: str) -> list[Measured | None]:
    """The clients' scores in a reply, where the metric is not accuracy; none where it has no meaning."""
    if "value" not in reply.tensors:
        return []
    values, errors = (reply.tensors[name].reshape(-1).tolist() for name in ("value", "error"))
    bounds = bounds_of(metric)
    return [
        None if error == NO_SCORE else Measured(value, error, None, bounds)
        for value, error in zip(values, errors, strict=True)
    ]


def personal_scores(server: Server, each: ByClient, diverged: int) -> Scores:
    """Personal scores from those of every client; notes how many personal models have diverged."""
    if diverged:
        hint = gentler(server.job.method.slot("client_stage"), server.job.settings.lr)
        server.note(
            f"Personal models that came out with NaN or infinite weights: {diverged} of {len(each.clients)}. These "
            f"clients keep the model that the client stage began with; {hint}."
        )
    mean, weighted, count = each.means()
    if not any(each.samples):
        return Scores()
    return Scores(
        personal=mean,
        personal_weighted=weighted,
        personal_count=count,
        personal_diverged=diverged or None,
        by_client={"personal": each},
    )


def with_personal(shared: Scores, own: Scores) -> Scores:
    """The shared model's scores and those of the clients' own models as one."""
    return replace(
        shared,
        personal=own.personal,
        personal_weighted=own.personal_weighted,
        personal_count=own.personal_count,
        personal_diverged=own.personal_diverged,
        personal_per_class=own.personal_per_class,
        by_client={**shared.by_client, **own.by_client},
        pooled={**shared.pooled, **own.pooled},
    )


def gentler(stage: Part, lr: float) -> str:
    """How to keep a client stage from doing harm."""
    rates = [f"{stage.name}.{each.name}" for each in fields(stage) if each.name.endswith("lr")]
    if not rates:
        return "try fewer epochs"
    given = min(getattr(stage, rates[0].partition(".")[2]) or lr, lr)
    return f"try a smaller learning rate: --set {rates[0]}={given / 10:g}"


def final_scores(server: Server, progress: Callable[[int, int], None]) -> Scores:
    """The shared model on everything, and each client's own model on its own test data."""
    job = server.job
    scores = server.last_scores
    if scores is None or len(job.watched) < len(job.federation):
        scores = score_shared(server, "local-all")
    if not job.settings.personal:
        return scores
    groups = job.personal_groups
    clients = [client for group in groups for client in group]
    with server.stages.measure("client_stage") as cost:
        own = score_clients(server, "personalise_group", range(len(groups)), progress, clients)
        # Groups are a matter of this machine: over a network every client is sent its request and answers by itself.
        cost.sent(server.build_request("personalise", server.round + 1), len(clients))
        cost.add("up", "counts", COUNTS_BYTES * len(clients))
    return with_personal(scores, own) if own.by_client else scores
