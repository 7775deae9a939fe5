"""What the client stage leaves: models that are whole, no larger than they must be, and a word where they do harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedframe
from fedframe.core.job import personal_path
from fedframe.util.files import read_tensors

SMALL: dict[str, Any] = {"data": "digits", "clients": 4, "rounds": 2, "workers": 1, "progress": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "part"), [("fedavg", "fine_tune"), ("fedper", "fine_tune"), ("fedetf", "fedetf_stage")]
)
def test_stage_that_diverges_leaves_the_model_it_began_with(tmp_path: Path, method: str, part: str) -> None:
    rate = {"fine_tune": {"lr": 1e30, "epochs": 2}, "fedetf_stage": {"head_lr": 1e30}}[part]
    result = fedframe.run(method, out=tmp_path / "run", set={part: rate}, **SMALL)
    for client in range(4):
        own, _ = read_tensors(personal_path(tmp_path / "run", client))
        assert all(bool(tensor.isfinite().all()) for tensor in own.values())
        assert own or method != "fedper"  # its classifier is its own, trained in rounds
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "NaN or infinite weights: 4 of 4" in log
    assert f"try a smaller learning rate: --set {part}." in log
    kept = fedframe.run(
        method, out=tmp_path / "plain", set={part: {"epochs": 0}} if part == "fine_tune" else {}, **SMALL
    )
    if part == "fine_tune":
        assert result.scores["personal"]["final"] == kept.scores["personal"]["final"]
    assert len(result.personal(1).predict(torch.zeros(3, 8, 8))) == 3


@pytest.mark.slow
def test_stage_that_does_harm_is_named(tmp_path: Path) -> None:
    fedframe.run("fedavg", out=tmp_path / "bad", set={"fine_tune": {"lr": 30.0}}, **SMALL)
    assert "the client stage did harm; try a smaller learning rate" in (tmp_path / "bad" / "log.txt").read_text()
    fedframe.run("fedavg", out=tmp_path / "good", **SMALL)
    log = tmp_path / "good" / "log.txt"
    assert not log.exists() or "did harm" not in log.read_text()


@pytest.mark.slow
def test_own_models_that_rounds_have_left_behind_get_no_advice_on_a_stage_that_does_nothing(tmp_path: Path) -> None:
    few = {**SMALL, "clients": 6, "partition": "longtail:100+dirichlet:1"}
    fedframe.run("fedrod", out=tmp_path / "run", **few)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "worse on their own data" in log
    assert "more rounds, or a smaller learning rate, may help" in log
    assert "fine_tune" not in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "absent"),
    [("etf", "head.weight"), ("spherefed", "head.weight"), ("fedloge", "backbone.")],
)
def test_frozen_and_untouched_tensors_are_not_kept_again(tmp_path: Path, method: str, absent: str) -> None:
    result = fedframe.run(method, out=tmp_path / "run", **SMALL)
    own, _ = read_tensors(personal_path(tmp_path / "run", 2))
    assert not any(name.startswith(absent) for name in own)
    shared = result.model.model.state_dict()
    assert not any(torch.equal(shared[name], tensor) for name, tensor in own.items())
    assert result.personal(2).model.state_dict().keys() == shared.keys()


@pytest.mark.slow
def test_client_stage_after_least_squares_does_no_harm_to_features_that_are_hardly_trained(tmp_path: Path) -> None:
    result = fedframe.run("spherefed", out=tmp_path / "run", **{**SMALL, "epochs": 1, "clients": 10})
    assert (result.scores["personal"]["final"] or 0) > (result.scores["client"]["final"] or 1) - 0.02


@pytest.mark.slow
def test_probabilities_of_a_squared_error_model_are_its_scores(tmp_path: Path) -> None:
    result = fedframe.run("spherefed", out=tmp_path / "run", **SMALL)
    source = fedframe.data.load_source("digits")
    assert source.test is not None
    inputs = source.test.x.take(torch.arange(200))
    found = result.model.probabilities(inputs)
    torch.testing.assert_close(found.sum(1), torch.ones(200))
    assert found.min() >= 0
    right = found.argmax(1) == source.test.y[:200]
    assert abs(float(found.max(1).values.mean()) - float(right.float().mean())) < 0.3  # a softmax of them says 1/4
    assert float(found[right].max(1).values.median()) > 0.6
