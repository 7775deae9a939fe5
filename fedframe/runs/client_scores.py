"""The final scores client by client, as `client_scores.json` keeps them."""

from __future__ import annotations

from typing import Any

from fedframe.core.evaluation import ByClient, Scores
from fedframe.core.job import Job
from fedframe.metrics.accuracy import spread

SCORES = ("client", "personal")


def client_table(job: Job, final: Scores) -> dict[str, list[Any]]:
    """A column per figure, a row per client that was scored; the means in summary.json are those of its columns."""
    found: dict[str, ByClient] = {score: final.by_client[score] for score in SCORES if score in final.by_client}
    rows = sorted({client for counted in found.values() for client in counted.clients})
    accuracies = {score: counted.accuracies() for score, counted in found.items()}
    names = job.federation.names if job.federation.source.user_names is not None else None
    train, tests = job.federation.train.sizes().tolist(), job.federation.local_test.sizes().tolist()
    return {
        "clients": [client if names is None else names[client] for client in rows],
        "train_samples": [train[client] for client in rows],
        "test_samples": [tests[client] for client in rows],
        **{score: [accuracies.get(score, {}).get(client) for client in rows] for score in SCORES},
    }


def spreads(table: dict[str, list[Any]]) -> dict[str, dict[str, float] | None]:
    """The spread of each score over the clients."""
    return {score: spread([value for value in table[score] if value is not None]) for score in SCORES}
