"""Scores of clients that were kept out of the training (the setting `new_clients`).

They get what `fedframe personalise` gives a new client: the shared model, what rounds would have left with them
(`ClientRuntime.catch_up`), and the method's client stage, all on their own data. Their models are scored and not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedframe.core.evaluation import Scores, score_clients
from fedframe.core.server import Server
from fedframe.engines.local import local_engine

DEFINITION = (
    "accuracy of the own models of clients that were kept out of the training, each on its own test data, unweighted "
    "mean over them; 'client' beside it: the shared model on the same data"
)


def score_new_clients(trained: Server, note: Callable[[str], None], progress: Callable[[int, int], None]) -> NewScores:
    """Personalise and score the clients behind the trained ones; the server is one whose training is over."""
    job = trained.job
    everyone = job.federation.all_clients
    new = range(len(job.federation), len(everyone))
    settings = job.settings.model_copy(update={"save_personal": False})
    # Numbers beyond those of the trained clients: they have no private state, and random streams of their own.
    guests = replace(job, federation=everyone, settings=settings)
    engine = local_engine(guests, note)
    try:
        server = Server(guests, engine, note)
        server.restore(trained.tensors(), trained.round)
        shared = score_clients(server, "own", new, progress, new) if job.shares_a_model else Scores()
        own = score_clients(server, "personalise", new, progress, new) if settings.personal else Scores()
    finally:
        engine.close()
    named = everyone.source.user_names is not None
    names = [everyone.names[k] if named else k for k in new]
    return NewScores(names, [len(everyone.train[k]) for k in new], shared, own)


class NewScores:
    """What new clients got from the run."""

    def __init__(self, names: list[str | int], train: list[int], shared: Scores, own: Scores) -> None:
        self.names, self.train, self.shared, self.own = names, train, shared, own

    def summary(self) -> dict[str, Any]:
        """For summary.json: `final` is that of their own models, `client` that of the shared one."""
        return {
            "final": self.own.personal,
            "weighted": self.own.personal_weighted,
            "client": self.shared.personal,
            "client_weighted": self.shared.personal_weighted,
            "count": max(self.own.personal_count, self.shared.personal_count),
        }

    def by_client(self) -> dict[str, list[Any]]:
        """For client_scores.json."""
        found = {"client": self.shared, "personal": self.own}
        each = {score: scores.by_client.get("personal") for score, scores in found.items()}
        known = next((counted for counted in each.values() if counted is not None), None)
        rows = known.clients if known is not None else []
        return {
            "clients": list(self.names),
            "train_samples": list(self.train),
            "test_samples": list(known.samples) if known is not None else [],
            **{
                score: [counted.values().get(k) for k in rows] if counted is not None else [None] * len(self.names)
                for score, counted in each.items()
            },
        }
