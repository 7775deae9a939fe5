"""Every recipe and every composition of the papers' tables: trains, learns, resumes, and does not depend on workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedframe
from fedframe.core.server import RoundRecord
from fedframe.errors import SettingError
from fedframe.recipes import RECIPES, make_method
from fedframe.report.progress import Display
from tests.helpers import same_file

COMPOSITIONS = [
    "fedavg+etf",
    "scaffold+etf",
    "fednova+etf",
    "fedadam+etf",
    "moon+etf",
    "fedavg+gmv",
    "fedavg+etf+gmv",
    "fedprox+spherefed",
    "fednova+spherefed",
    "fedadam+spherefed",
    "fedavg+lra",
    "fedavg+gne",
    "etf+auxiliary_heads+ga_fr+la_fr",
    "sse_c+auxiliary_heads",
    "frozen_random+auxiliary_heads+ga_fr+la_fr",
    "orthonormal+normalise+temperature",
    "frozen_random+normalise+mse",
    "fedetf+gne",
    "fedloge+gne",
    "spherefed+gmv",
    "scaffold+fedloge",
    "moon+fedetf",
    "fedrane+fedetf",
]
BRIEF: dict[str, Any] = {"data": "digits", "clients": 4, "rounds": 2, "epochs": 1, "batch": 32, "seed": 1}


class StopAfterOne(Display):
    """Pulls the plug after the first round."""

    def round(self, record: RoundRecord) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("method", [*RECIPES, *COMPOSITIONS])
def test_method_trains_resumes_and_is_the_same_for_any_number_of_workers(tmp_path: Path, method: str) -> None:
    whole = fedframe.run(method, out=tmp_path / "whole", workers=1, progress=False, **BRIEF)
    with pytest.raises(KeyboardInterrupt):
        fedframe.run(method, out=tmp_path / "cut", workers=2, progress=StopAfterOne(), **BRIEF)
    cut = fedframe.resume(tmp_path / "cut", progress=False)
    assert same_file(tmp_path / "whole" / "model.safetensors", tmp_path / "cut" / "model.safetensors")
    assert whole.scores == cut.scores
    losses = [line["loss"] for line in whole.history]
    assert np.isfinite(losses).all()
    assert losses[1] < losses[0]
    generic, personal = whole.scores["generic"]["final"], whole.scores["personal"]["final"]
    assert generic is not None
    assert personal is not None
    assert personal > 0.3  # chance is a tenth


@pytest.mark.parametrize(
    ("method", "first", "second", "slot"),
    [
        ("fednova+fedadam", "fednova", "fedadam", "merge"),
        ("spherefed+fedetf", "orthonormal", "etf", "head"),
        ("fedloge+spherefed", "sse_c", "orthonormal", "head"),
        ("spherefed+ga_fr", "ffc", "ga_fr", "server_stage"),
    ],
)
def test_two_parts_for_one_slot_are_refused_by_name(method: str, first: str, second: str, slot: str) -> None:
    with pytest.raises(SettingError, match=f"'{first}' and '{second}' both claim the {slot} slot"):
        make_method(method, {})


def test_fedavg_etf_is_fedavg_with_etf_and_memory() -> None:
    assert make_method("fedavg_etf", {}).parts == make_method("fedavg+etf+gmv", {}).parts
    assert make_method("fedrane", {}).parts == make_method("fedavg+lra+gne", {}).parts
