"""New clients to methods whose clients have more than the shared model: private layers, or an own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedframe
from fedframe.methods.recipes import make_method
from fedframe.runs.folder import RunFolder
from fedframe.util.files import read_tensors
from tests.methods.test_recipes import NEEDS
from tests.runs.personalising import split_digits

pytestmark = pytest.mark.slow  # trains many small runs

# After 6 rounds two samples of 75 do not decide, and the shared model alone would mostly not be good enough.
SMALL: dict[str, Any] = {"workers": 1, "progress": False, "rounds": 6}
METHODS = ("fedbabu", "fedper", "fedrep", "fedbn", "fedrod", "ditto", "pfedme", "apple", "fedmtl", "local", "central")

WEAK = {"fedbn": 0.6, "pfedme": 0.8}  # a new client trains 24 numbers of BatchNorm; theta is near the shared model


@pytest.mark.parametrize("method", METHODS)
def test_new_client_gets_a_model_that_is_good_for_it(tmp_path: Path, method: str) -> None:
    inside, north = split_digits()
    given = {**SMALL, **NEEDS.get(method, {}), **({"rounds": 10} if method in WEAK else {})}
    result = fedframe.run(method, data=inside, out=tmp_path / "run", **given)
    new = result.personalise((north["x"], north["y"]), name="north", progress=False)
    assert (new.scores["client"] is not None) == make_method(method, {}).shares_a_model
    assert new.scores["personal"] is not None
    good = WEAK.get(method, 0.85)
    assert new.scores["personal"] >= max(good, new.scores["client"] or 0)
    right = np.array(result.personal("north").predict(north["x"])) == north["y"].astype(str)
    assert right.mean() > good


@pytest.mark.parametrize("method", ["apple", "fedmtl", "ditto"])
def test_new_client_to_a_run_without_its_checkpoint_starts_from_the_shared_weights(tmp_path: Path, method: str) -> None:
    """What a new client elsewhere is sent: settings and model. The saved model is the mean of the clients' own."""
    inside, north = split_digits()
    fedframe.run(method, data=inside, out=tmp_path / "run", **SMALL)
    for path in (tmp_path / "run").glob("checkpoint*"):
        path.unlink()
    new = fedframe.personalise(tmp_path / "run", (north["x"], north["y"]), name="north", progress=False)
    assert (new.scores["personal"] or 0) >= 0.85
    own, _ = read_tensors(RunFolder(tmp_path / "run").joined_path("north"))
    assert own
    assert all(bool(torch.isfinite(tensor).all()) for tensor in own.values())
