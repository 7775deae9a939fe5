"""Features of a frozen backbone are computed once, and nothing else changes by that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedframe
from fedframe.core import feature_cache
from fedframe.core.client_runtime import ClientRuntime
from tests.helpers import blobs, images, make_job, same_file


class Counting(nn.Module):
    """A small net that counts the samples that it has seen."""

    seen = 0

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        size = torch.Size(shape).numel()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        Counting.seen += len(x)
        found: Tensor = self.body(x)
        return found


def train(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, method: str = "fedavg", **settings: Any
) -> fedframe.Result:
    if not cached:
        monkeypatch.setattr("fedframe.core.client_runtime.caches_features", lambda job: False)
    Counting.seen = 0
    usual = {"rounds": 4, "epochs": 2, "freeze": "backbone", "workers": 1, "partition": "user", "lr": 0.05, "batch": 8}
    return fedframe.run(
        method, data=blobs(), model=Counting, out=folder, progress=False, **{**usual, **settings}
    )  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_every_sample_goes_through_the_backbone_once_and_scores_stay(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = train(tmp_path / "cached", monkeypatch, True, method)
    seen = Counting.seen
    data = blobs()
    # Tests of clients are asked for together and client by client; a few samples more time a batch, and try the net.
    assert seen <= len(data["y_train"]) + len(data["y_test"]) + len(data["y_train"]) // 4 + 32
    plain = train(tmp_path / "plain", monkeypatch, False, method)
    assert Counting.seen > 5 * seen
    mine, theirs = (dict(run.model.model.named_parameters()) for run in (cached, plain))
    for name, weight in mine.items():
        torch.testing.assert_close(
            weight, theirs[name], atol=1e-6, rtol=1e-5
        )  # batches of other sizes may round otherwise
    for score, found in cached.scores.items():
        assert found["final"] == pytest.approx(plain.scores[score]["final"], abs=1e-6)


def test_predictions_are_the_same_bits_as_without_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path, images(), "cnn7", freeze="backbone", partition="iid", clients=2)
    cached = ClientRuntime(job)
    monkeypatch.setattr("fedframe.core.client_runtime.caches_features", lambda job: False)
    plain = ClientRuntime(job)
    assert cached.cache is not None
    assert plain.cache is None
    for client in range(2):
        assert cached.predict_local(client) == plain.predict_local(client)
        rows = job.federation.train[client]
        assert torch.equal(cached.embeddings(rows, client), plain.embeddings(rows, client))
        assert torch.equal(cached.embeddings(rows.flip(0), client), plain.embeddings(rows.flip(0), client))


def test_any_number_of_workers_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [train(tmp_path / str(workers), monkeypatch, True, workers=workers, participation=0.5) for workers in (1, 2)]
    assert same_file(runs[0].folder / "model.safetensors", runs[1].folder / "model.safetensors")


@pytest.mark.parametrize(
    ("settings", "model"),
    [({"freeze": "none"}, "cnn7"), ({"freeze": "2"}, "cnn7"), ({"freeze": "backbone", "augment": "flip"}, "cnn7")],
)
def test_what_may_change_is_not_cached(settings: dict[str, Any], model: str, tmp_path: Path) -> None:
    job = make_job(tmp_path, images(), model, partition="iid", clients=2, **settings)
    assert not feature_cache.caches_features(job)


def test_a_cache_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "MOST_BYTES", 64)
    runs = [train(tmp_path / "bounded", monkeypatch, True)]
    assert Counting.seen > 500
    assert runs[0].scores["generic"]["final"] is not None
