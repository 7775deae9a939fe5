"""What is kept of the last round's local models: they are the models that are merged, and measured as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedframe
from fedframe.analysis.forms import Matrix, Points
from fedframe.analysis.measurements import LOCAL, LocalMeasures
from fedframe.errors import DataError
from fedframe.metrics.last_round import FILE
from fedframe.runs.folder import RunFolder
from fedframe.util.files import read_tensors
from tests.helpers import blobs

SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 8, "lr": 0.05, "model": "mlp:16", "partition": "user"}


def run(out: Path, clients: int, **more: Any) -> RunFolder:
    settings = {**SMALL, "workers": 1, "progress": False, "personal": False, "measure": "drift,local", **more}
    return RunFolder(fedframe.run("fedavg", data=blobs(clients=clients), out=out, **settings).folder)


@pytest.mark.slow
def test_local_model_of_an_only_client_is_the_shared_one(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 1)
    first, last = folder.metrics()
    assert "local" not in first
    assert last["local"] == pytest.approx(last["client"])
    tensors, names = read_tensors(folder.path / FILE)
    shared = read_tensors(folder.path / "model.safetensors")[0]["model/head.weight"]
    assert torch.allclose(tensors["vectors"][0], shared, atol=1e-6)
    assert len(names["vectors"]) == 1


@pytest.mark.slow
def test_shared_class_vectors_are_the_mean_of_the_local_ones_by_samples(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 3)
    tensors, names = read_tensors(folder.path / FILE)
    sizes = tensors["counts"].sum(1).double()
    mean = (tensors["vectors"].double() * (sizes / sizes.sum())[:, None, None]).sum(0)
    shared = read_tensors(folder.path / "model.safetensors")[0]["model/head.weight"]
    assert torch.allclose(mean.float(), shared, atol=1e-6)
    assert tensors["features"].shape[:2] == (2, len(tensors["labels"]))
    assert len(names["features"]) == 2
    # The number beside the picture of class vectors is that which is measured in rounds (SphereFed's Eq. 2).
    found = {name: measured(LocalMeasures(folder.path, 0)) for name, (_, measured) in LOCAL.items()}
    vectors, norms, features = found["class_vectors"], found["norms"], found["features"]
    assert isinstance(vectors, Points)
    (cosine,) = vectors.facts.values()
    assert cosine == pytest.approx(folder.metrics()[-1]["classifier_cosine"], rel=1e-4)
    assert isinstance(norms, Matrix)
    assert norms.cells[1][0] == pytest.approx(float(tensors["vectors"][1, 0].double().norm()))
    assert isinstance(features, Points)
    assert len(features.x) == 2 * len(tensors["labels"])


def test_run_without_the_measure_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="made by a run with measure = local"):
        LocalMeasures(tmp_path, 0)
