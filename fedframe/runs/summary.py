"""What is kept of a run at its end: final scores with their definitions, client by client as well, and the costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedframe.core.evaluation import ByClient, Scores, definitions
from fedframe.core.job import Job
from fedframe.core.measures import Evidence, Measured, Predictions, mean_f1, mean_of_independent, sign_of
from fedframe.core.privacy import epsilon_of_release, release_of
from fedframe.core.stage_costs import StageCost, StageCosts
from fedframe.metrics.accuracy import accuracy_by_group, spread
from fedframe.metrics.cost import bytes_by_part
from fedframe.metrics.measure_table import measure_table
from fedframe.metrics.target_table import target_table
from fedframe.runs.new_client_scores import DEFINITION, NewScores

SCORES = ("client", "personal")  # those that are kept client by client


def summarise(
    job: Job,
    history: Sequence[dict[str, Any]],
    final: Scores,
    new: NewScores | None,
    costs: dict[str, Any],
    traffic: Mapping[str, Mapping[str, int]],
    stages: StageCosts,
) -> dict[str, Any]:
    """The content of summary.json; `costs` and `traffic` are over all sessions of the run."""
    up, down = (sum(line[f"bytes_{way}"] for line in history) for way in ("up", "down"))
    once = job.bytes_once * len(job.federation)
    classes = job.federation.source.outputs
    means = definitions(job.settings.validate_share, job.settings.score_metric)
    per_class = dict(zip(classes, final.per_class, strict=False))
    train_per_class = train_counts(job)
    return {
        "method": job.settings.method,
        "data": job.settings.data,
        "partition": job.settings.partition,
        "clients": len(job.federation.present),
        "rounds": job.settings.rounds,
        "seed": job.settings.seed,
        "scores": {
            "generic": {
                **over_rounds(history, "generic"),
                "final": final.generic,
                **interval(job.score(final.pooled["generic"]) if "generic" in final.pooled else None),
                "samples": final.pooled["generic"].samples if "generic" in final.pooled else 0,
            },
            "client": {
                **over_rounds(history, "client"),
                "final": final.client,
                **over_clients(final.by_client.get("client")),
                "weighted": final.client_weighted,
                "clients": final.client_count,
                **without_reply(job, final.client_count, personal=False),
            },
            "personal": {
                **over_rounds(history, "personal"),
                "final": final.personal,
                **over_clients(final.by_client.get("personal")),
                "weighted": final.personal_weighted,
                **f1_over_clients(final),
                "clients": final.personal_count,
                **without_reply(job, final.personal_count, personal=True),
            },
            **({} if new is None else {"new": new.summary()}),
        },
        "metric": job.settings.score_metric,
        "task": job.federation.source.task,
        "measures": {score: measures_of(job, evidence) for score, evidence in final.pooled.items()},
        "class_weights": class_weights(job),
        "per_class": per_class,
        "personal_per_class": dict(zip(classes, final.personal_per_class, strict=False)),
        "train_per_class": train_per_class,
        "per_group": accuracy_by_group(per_class, train_per_class),
        "definitions": means if new is None else {**means, "new": DEFINITION},
        "shares_a_model": job.shares_a_model,
        "server_stage": job.method.optional_slot("server_stage") is not None,
        "evaluations": sum("generic" in line or "personal" in line for line in history),
        "parameters": job.parameters,
        "seconds": round(costs["seconds"], 3),
        "seconds_in_rounds": round(sum(line["seconds"] for line in history), 3),
        "cpu_seconds": round(costs["cpu_seconds"], 3),
        "peak_memory_mb": round(costs["peak_memory"] / 2**20, 1),
        "bytes_up": up,
        "bytes_down": down,
        "bytes_by_part": bytes_by_part(traffic, job.roles.layout),
        "bytes_once": once,
        "stages": {name: stage_cost(job, cost) for name, cost in stages.items()},
        "bytes_up_total": up + sum(cost.bytes("up") for cost in stages.values()),
        "bytes_down_total": down + once + sum(cost.bytes("down") for cost in stages.values()),
        "privacy": privacy_spent(job, history),
        "updates_refused": sum(line["dropped"] - line.get("lost", 0) for line in history),
        "replies_missing": sum(line.get("lost", 0) for line in history),
    }


def measures_of(job: Job, evidence: Evidence) -> dict[str, Any]:
    """Every measure of some predictions that the task has."""
    outputs, at = job.federation.source.outputs, job.settings.metric_at
    if job.target is not None:
        return target_table(evidence, outputs, at)
    return measure_table(evidence, outputs, job.positive, at)


def stage_cost(job: Job, cost: StageCost) -> dict[str, Any]:
    """What a stage after the last round cost, as plain values."""
    return {
        "bytes_up": cost.bytes("up"),
        "bytes_down": cost.bytes("down"),
        "bytes_by_part": bytes_by_part(cost.traffic, job.roles.layout),
        "seconds": round(cost.seconds, 3),
    }


def interval(found: Measured | None) -> dict[str, float | None]:
    """The 95 % interval of a score."""
    return {"low": None, "high": None} if found is None else {"low": found.low, "high": found.high}


def over_clients(each: ByClient | None) -> dict[str, float | int | None]:
    """The interval of a mean over clients, and how many test samples they have together."""
    if each is None:
        return {**interval(None), "samples": 0}
    measured = each.measured()
    sizes = dict(zip(each.clients, each.samples, strict=True))
    return {**interval(mean_of_independent(list(measured.values()))), "samples": sum(sizes[k] for k in measured)}


def f1_over_clients(final: Scores) -> dict[str, float]:
    """F1 of the clients' own models on their own test data, mean over clients: of classes alike, or by their samples.

    Nothing where only sums over clients are known.
    """
    pooled, each = final.pooled.get("personal"), final.by_client.get("personal")
    if each is None or not isinstance(pooled, Predictions):
        return {}
    found = [own.confusion for own in pooled.split(each.samples) if own.samples]
    return {"f1": fmean(map(mean_f1, found)), "f1_weighted": fmean(mean_f1(one, weighted=True) for one in found)}


def class_weights(job: Job) -> dict[str, float] | None:
    """The weight of each class's samples in the loss, where they have any."""
    if job.class_weights is None:
        return None
    return dict(zip(job.federation.source.classes, job.class_weights.tolist(), strict=True))


def without_reply(job: Job, counted: int, personal: bool) -> dict[str, int]:
    """How many clients with test data are not in a final score (the key `unheard`): over a network some are away."""
    if not counted:
        return {}
    everyone = job.federation.present.tolist()
    asked = [client for group in job.personal_groups for client in group] if personal else everyone
    missing = sum(len(job.federation.local_test[client]) > 0 for client in asked) - counted
    return {"unheard": missing} if missing > 0 else {}


def privacy_spent(job: Job, history: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """What the run has spent of its clients' privacy, if it keeps count."""
    settings = job.settings
    if settings.privacy_clip is None:
        return None
    release = release_of(job.method)
    if release is None and (not history or "epsilon" not in history[-1]):  # only the organiser keeps count
        return None
    single = "single updates" if release is None else "single clients' sums"
    covers = "the shared model" + (f" and {single}" if settings.privacy_at == "node" else "")
    spent = epsilon_of_release(job) if release is not None else history[-1]["epsilon"]
    protects = "clients" if release is None else release.protects
    return {"epsilon": spent, "delta": settings.privacy_delta, "covers": covers, "protects": protects}


def train_counts(job: Job) -> dict[str, int]:
    """Training samples of every class, over all clients; empty where labels stay with the clients."""
    source = job.federation.source
    if not len(source.train) or source.target is not None:
        return {}
    labels = source.train.y[job.federation.train.values]
    return dict(zip(source.classes, labels.bincount(minlength=len(source.classes)).tolist(), strict=True))


def over_rounds(history: Sequence[dict[str, Any]], score: str) -> dict[str, float | None]:
    """A score after the last round, and its mean over the last five evaluations."""
    values = [line[score] for line in history if line.get(score) is not None]
    return {"last": values[-1] if values else None, "last_five": fmean(values[-5:]) if values else None}


# -- client by client --------------------------------------------------------------------------------------------------
def client_table(job: Job, final: Scores) -> dict[str, list[Any]]:
    """A column per figure, a row per client that was scored; the means in summary.json are those of its columns."""
    found: dict[str, ByClient] = {score: final.by_client[score] for score in SCORES if score in final.by_client}
    rows = sorted({client for counted in found.values() for client in counted.clients} - job.federation.left)
    values = {score: counted.values() for score, counted in found.items()}
    names = job.federation.names if job.federation.source.user_names is not None else None
    train, tests = job.federation.train.sizes().tolist(), job.federation.local_test.sizes().tolist()
    return {
        "clients": [client if names is None else names[client] for client in rows],
        "train_samples": [train[client] for client in rows],
        "test_samples": [tests[client] for client in rows],
        **{score: [values.get(score, {}).get(client) for client in rows] for score in SCORES},
        **{
            f"{score}_{end}": [getattr(counted.get(client), end, None) for client in rows]
            for score, counted in {score: each.measured() for score, each in found.items()}.items()
            for end in ("low", "high")
        },
    }


def spreads(table: dict[str, list[Any]], metric: str = "accuracy") -> dict[str, dict[str, float] | None]:
    """The spread of each score over the clients, from worst to best: of errors the largest is the worst."""
    return {score: spread([value for value in table[score] if value is not None], sign_of(metric)) for score in SCORES}
