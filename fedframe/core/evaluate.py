"""Scores with one meaning each.

generic    accuracy of the shared model on the global test set
client     accuracy of the shared model on each client's own test data, mean over clients
personal   accuracy of each client's own model on its own test data, mean over clients

Means over clients are unweighted; the mean weighted by test samples stands beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedframe.core.job import PIECE
from fedframe.core.message import LOST, Message
from fedframe.core.remote import Remote

if TYPE_CHECKING:
    from fedframe.core.part import Part
    from fedframe.core.server import Server

DEFINITIONS = {
    "generic": "accuracy of the shared model on the global test set",
    "client": "accuracy of the shared model on each client's own test data, unweighted mean over clients",
    "personal": "accuracy of each client's own model on its own test data, unweighted mean over clients",
    "last": "after the last round (client: over the clients watched between rounds, at most eval_clients)",
    "last_five": "mean of the last five evaluations between rounds (fewer if there were fewer)",
    "final": "of the saved models: after the server stage and, for personal, after the client stage; over all clients "
    "(personal: over at most personal_clients)",
    "weighted": "like final, but the mean is weighted by the clients' test samples",
    "per_group": "like generic final, mean over the classes that are frequent (many: those with the first 75 % of "
    "the training samples), middling (medium: up to 95 %) or rare (few) in the training data",
    "clients": "how many clients the final mean is over: those that have test data",
    "bytes": "of all clients together: bytes_up and bytes_down in all rounds, bytes_once what a client gets only once "
    "(a frozen classifier); evaluation and final stages are not counted",
    "none": "null means not measured: the method has no such model between rounds, or there are no test data",
}


def definitions(validate_share: float) -> dict[str, str]:
    """What the scores of a run mean; with a validation share no score has seen the test set."""
    if not validate_share:
        return DEFINITIONS
    share = f"{100 * validate_share:g} % of the training data (validation; all test data were put aside)"
    return {
        **DEFINITIONS,
        "generic": f"accuracy of the shared model on a held-out {share}",
        "client": f"accuracy of the shared model on each client's held-out {share}, unweighted mean over clients",
        "personal": f"accuracy of each client's own model on its held-out {share}, unweighted mean over clients",
    }


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


def score_round(server: Server) -> Scores:
    """What is measured between rounds: the shared model and, where clients have more than that, their own."""
    if isinstance(server.engine, Remote):
        ask_late_scores(server, server.engine)
        return score_generic(server)[0]
    scores = score_shared(server, "local")
    if not has_own_models(server):
        return scores
    watched = [int(client) for client in server.job.watched]
    return replace(scores, **score_clients(server, "own", watched, lambda done, total: None, len(watched)))


def has_own_models(server: Server) -> bool:
    """Whether clients have models between rounds that are more than the shared one."""
    return bool(server.job.roles.private) or server.job.method.optional_slot("own") is not None


def score_generic(server: Server) -> tuple[Scores, Tensor]:
    """Score the shared model on the global test set; also, for each of its samples, whether it was right."""
    job = server.job
    if not job.shares_a_model:
        return Scores(), torch.empty(0, dtype=torch.bool)
    predicted, loss = predict_set(server, "test")
    labels = job.pool("test").y if len(predicted) else torch.empty(0, dtype=torch.int64)
    right = predicted == labels
    hits = torch.bincount(labels, right.double(), minlength=job.template.classes)
    totals = torch.bincount(labels, minlength=job.template.classes)
    per_class = tuple(float(h / t) if t else None for h, t in zip(hits, totals, strict=True))
    scores = Scores(
        generic=float(right.double().mean()) if len(right) else None,
        generic_loss=loss / len(right) if len(right) else None,
        per_class=per_class,
    )
    return scores, right


def score_shared(server: Server, local: str) -> Scores:
    """Score the shared model on the global test set and on clients' own (`local` or `local-all`)."""
    job = server.job
    scores, right = score_generic(server)
    if not job.shares_a_model:
        return scores
    if job.federation.local_test_pool == "test":
        local_right = right[job.test_rows(local)]  # the same model on the same samples
    else:
        local_predicted, _ = predict_set(server, local)
        local_right = local_predicted == job.pool(local).y[job.test_rows(local)]
    clients = job.scored_clients(local)
    sizes = job.federation.local_test.sizes()[clients]
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    hits = torch.bincount(owner, local_right.double(), minlength=len(sizes))
    mean, weighted, count = over_clients(hits, sizes)
    return replace(scores, client=mean, client_weighted=weighted, client_count=count)


def predict_set(server: Server, which: str) -> tuple[Tensor, float]:
    """The shared model's predictions for a whole test set, and the summed loss."""
    pieces = -(-len(server.job.test_rows(which)) // PIECE)
    order = server.order("score", server.round)
    order = Message("score", order.round, -1, order.tensors, {**order.numbers, "set": which})
    predicted = [torch.empty(0, dtype=torch.int64)]
    loss = 0.0
    for reply in server.engine.run(order, range(pieces)):
        predicted.append(reply.tensors["predicted"].long())  # a copy: the reply is only lent
        loss += float(reply.numbers["loss"])
    return torch.cat(predicted), loss


def over_clients(hits: Tensor, sizes: Tensor) -> tuple[float | None, float | None, int]:
    """Unweighted and weighted mean accuracy over the clients that have test data, and how many they are."""
    some = sizes > 0
    if not bool(some.any()):
        return None, None, 0
    mean = float((hits[some] / sizes[some]).mean())
    return mean, float(hits.sum() / sizes.sum()), int(some.sum())


def score_clients(
    server: Server, kind: str, units: Sequence[int], progress: Callable[[int, int], None], clients: int
) -> dict[str, Any]:
    """Personal scores: each client (or group of them) says how many of its own test samples are right."""
    order = server.order(kind, server.round + 1)
    return personal_scores(server, order, server.engine.run(order, units), progress, clients)


def personal_scores(
    server: Server, order: Message, replies: Iterable[Message], progress: Callable[[int, int], None], clients: int
) -> dict[str, Any]:
    """Personal scores from what clients (or groups of them) say of their own test samples."""
    right: list[int] = []
    sizes: list[int] = []
    diverged = 0
    for reply in replies:
        if not usable_hits(server, order, reply):
            continue
        diverged += int(reply.tensors.get("diverged", torch.zeros(())).sum())
        right += reply.tensors["hits"].sum(-1).reshape(-1).tolist()
        sizes += reply.tensors["samples"].sum(-1).reshape(-1).tolist()
        progress(len(sizes), clients)
    if diverged:
        hint = gentler(server.job.method.slot("client_stage"), server.job.settings.lr)
        server.note(
            f"Personal models that came out with NaN or infinite weights: {diverged} of {clients}. These clients keep "
            f"the model that the client stage began with; {hint}."
        )
    shares = [hits / size for hits, size in zip(right, sizes, strict=True) if size]
    if not shares:
        return {}
    return {
        "personal": sum(shares) / len(shares),
        "personal_weighted": sum(right) / sum(sizes),
        "personal_count": len(shares),
        "personal_diverged": diverged or None,
    }


def gentler(stage: Part, lr: float) -> str:
    """How to keep a client stage from doing harm."""
    rates = [f"{stage.name}.{field.name}" for field in fields(stage) if field.name.endswith("lr")]
    if not rates:
        return "try fewer epochs"
    given = min(getattr(stage, rates[0].partition(".")[2]) or lr, lr)
    return f"try a smaller learning rate: --set {rates[0]}={given / 10:g}"


def final_scores(server: Server, progress: Callable[[int, int], None]) -> Scores:
    """The shared model on everything, and each client's own model on its own test data."""
    job = server.job
    if isinstance(server.engine, Remote):
        return final_scores_from_afar(server, server.engine, progress)
    scores = server.last_scores
    if scores is None or len(job.watched) < len(job.federation):
        scores = score_shared(server, "local-all")
    if not job.settings.personal:
        return scores
    groups = job.personal_groups
    clients = sum(map(len, groups))
    return replace(scores, **score_clients(server, "personalise_group", range(len(groups)), progress, clients))


# -- clients behind a network: they alone have their test data, and a message to them is dear --------------------------
def usable_hits(server: Server, order: Message, reply: Message) -> bool:
    """Whether a client's count of right predictions can be believed to be one; if not, say why."""
    if server.is_lost(reply, order):
        return False
    hits, samples = (reply.tensors.get(name, torch.empty(0)) for name in ("hits", "samples"))
    counts = hits.dtype == samples.dtype == torch.int64 and hits.shape == samples.shape
    if reply.kind == order.kind and counts and bool(((hits >= 0) & (hits <= samples)).all()):
        own = order.kind in ("client", "own", "personalise")  # a client's, not a group's
        if not own or int(samples.sum()) <= len(server.job.federation.local_test[reply.unit]):
            return True
    server.note(f"Round {order.round}, {order.kind}: the counts of client {reply.unit} were refused.")
    return False


def ask_late_scores(server: Server, engine: Remote) -> None:
    """Have the watched clients score the model as it stands when it is sent to them the next time."""
    watched = [int(client) for client in server.job.watched]
    if server.job.shares_a_model:
        engine.also("client", watched)
    if has_own_models(server):
        engine.also("own", watched)


def late_scores(server: Server) -> Scores | None:
    """What clients have told of the model that the last order brought them; None if they were not asked."""
    engine = server.engine
    if not isinstance(engine, Remote):
        return None
    order = server.order("client", server.round + 1)
    shared, own = engine.heard("client"), engine.heard("own")
    if shared is None and own is None:
        return None
    # Whoever did not reply to the order itself has been named by now.
    told, own_told = ([reply for reply in replies or () if reply.kind != LOST] for replies in (shared, own))
    scores = replace(Scores(), **client_scores(server, order, told))
    if own is None:
        return scores
    order = replace(order, kind="own")
    return replace(scores, **personal_scores(server, order, own_told, lambda done, total: None, len(own)))


def client_scores(server: Server, order: Message, replies: Sequence[Message]) -> dict[str, Any]:
    """The shared model's score on clients' own test data, from their counts."""
    fine = [reply for reply in replies if usable_hits(server, order, reply)]
    if not fine:
        return {}
    hits, sizes = (torch.stack([reply.tensors[name].sum() for reply in fine]) for name in ("hits", "samples"))
    mean, weighted, count = over_clients(hits.double(), sizes)
    return {"client": mean, "client_weighted": weighted, "client_count": count}


def fetch_late_scores(server: Server) -> Scores | None:
    """Late scores of the model as it stands, by a message of their own: something is about to change the model."""
    engine = server.engine
    if not isinstance(engine, Remote) or not engine.awaits():
        return None
    for _ in engine.run(server.order("client", server.round + 1), ()):
        pass
    return late_scores(server)


def final_scores_from_afar(server: Server, engine: Remote, progress: Callable[[int, int], None]) -> Scores:
    """As `final_scores`: clients score the final model when it comes to them, and make their own in the same breath."""
    job = server.job
    scores = server.last_scores if server.last_scores is not None else score_generic(server)[0]
    everyone = [int(client) for group in job.personal_groups for client in group]
    kind = "personalise" if job.settings.personal else "client"
    if kind == "personalise" and job.shares_a_model:
        engine.also("client", range(len(job.federation)))
    order = server.order(kind, server.round + 1)
    units = everyone if kind == "personalise" else range(len(job.federation)) if job.shares_a_model else ()
    replies = engine.run(order, units)
    if kind == "client":
        return replace(scores, **client_scores(server, order, list(replies)))
    personal = personal_scores(server, order, replies, progress, len(everyone))
    last = late_scores(server)
    if last is None:
        return replace(scores, **personal)
    if server.late is None:  # no server stage: the model of the last round is the final one
        server.late = last
    scores = replace(scores, client=last.client, client_weighted=last.client_weighted, client_count=last.client_count)
    return replace(scores, **personal)
