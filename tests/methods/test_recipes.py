"""Every recipe and every composition of the papers' tables: trains, learns, resumes, and does not depend on workers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedframe
from fedframe.core.round_record import RoundRecord
from fedframe.errors import SettingError
from fedframe.methods.recipes import RECIPES, make_method
from fedframe.runs.progress import Display
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
    "feddyn+etf",
    "spherefed+feddyn",
    "fedprox+ccvr",
    "etf+ccvr",
    "moon+fednh",
    "scaffold+fedrs",
    "fedmmd+fedaws",
    "fedadam+ratioloss",
    "etf+fedproto",
    "fedprox+fedbabu",
    "fedper+fedetf",
    "fednova+fedrep",
    "fedbn+spherefed",
    "moon+fedbn",
    "fedbn+fedrep",
    "etf+fedrod",
    "ditto+fedetf",
    "scaffold+ditto",
    "ditto+fedloge",
    "ditto+fednh",
    "pfedme+fedetf",
    "fedper+apple",
    "moon+fedmtl",
    "local+fedetf",
    "central+spherefed",
    "scaffold+fedsam",
    "fedper+fedsam",
    "fedprox+fedexp",
    "fedsam+qfedavg",
    "median+bucketing",
    "trimmed_mean+nnm",
    "fedprox+norm_bound",
    "rfa+attack",
]
# What a part needs to work at all, beside the brief settings of all.
NEEDS: dict[str, dict[str, Any]] = {
    "fedrep": {"epochs": 2},  # for the head, and for the body
    "fedbn": {"model": "tests.models.normed:normed"},
    "krum": {"partition": "iid"},  # it follows one client, which must stand for all
    "fedgloss": {"lr": 0.1},  # the authors' .01 is for 10,000 rounds
    "scaffold": {"lr": 0.1},  # in two rounds of one epoch, its own .05 is too slow to show
}
# Rows of the papers' ablation tables that are not above: the same parts in another company, so one short run will do.
LONG_TAIL = "auxiliary_heads+ga_fr+la_fr"
SPARSE = {"sparsity": 0.6}
ROWS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "FedLoGe 3: SSE-C": ("sse_c", {}),
    "FedLoGe 3: SSE-C, GA-FR": ("sse_c+auxiliary_heads+ga_fr", {}),
    "FedLoGe 3: SSE-C, LA-FR": ("sse_c+auxiliary_heads+la_fr", {}),
    "FedLoGe, as in the authors' code": ("fedloge", {"la_fr": {"plus_phi": True}}),
    "FedLoGe 7: by label counts": ("fedloge", {"la_fr": {"by": "counts"}}),
    "FedLoGe 8: ETF, DR": ("etf+dot_regression", {}),
    "FedLoGe 8: ETF, projection, DR": ("etf+projection+dot_regression", {}),
    "FedLoGe 8: ETF, projection, DR, sparse": ("sse_c+projection+dot_regression", {}),
    "FedLoGe 8: FedLoGe, projection": ("fedloge+projection", {}),
    **{
        f"FedLoGe 9: {init}, {'sparse' if sparse else 'dense'}": (
            "frozen_random",
            {"frozen_random": {"init": init, **sparse}},
        )
        for init in ("xavier", "gaussian", "uniform", "orthogonal", "kaiming")
        for sparse in ({}, SPARSE)
    },
    "SphereFed 3: CE, fixed (R)": ("fedavg+frozen_random", {}),
    "SphereFed 3: CE, fixed (OU)": ("fedavg+orthonormal", {}),
    "SphereFed 3: CE, normalised": ("fedavg+normalise", {}),
    "SphereFed 3: CE, fixed (OU), normalised": (
        "fedavg+orthonormal+normalise+temperature",
        {"temperature": {"beta": 16.0, "learned": False}},
    ),
    "SphereFed 3: MSE": ("fedavg+mse", {}),
    "SphereFed 3: MSE, fixed (R)": ("fedavg+frozen_random+mse", {}),
    "SphereFed 3: MSE, fixed (OU)": ("fedavg+orthonormal+mse", {}),
    "SphereFed 3: MSE, normalised": ("fedavg+normalise+mse", {}),
    "SphereFed 3: MSE, fixed (OU), normalised": ("fedavg+orthonormal+normalise+mse", {}),
    "SphereFed 4: without FFC": ("fedadam+orthonormal+normalise+mse", {}),
    "SphereFed 4: CCVR": ("fedadam+orthonormal+normalise+mse+ccvr", {}),
    "SphereFed 4: sanity check": ("fedadam+orthonormal+normalise+mse+pooled_head", {}),
    "SphereFed 2: CCVR": ("fedavg+ccvr", {}),
    "SphereFed 2: FedAvg": ("fedavg+spherefed", {}),
    "Huang 3: alpha, R_warm": ("fedavg+etf+gmv", {"gmv": {"alpha": 0.1, "warm": 2}}),
    "Huang 5: scale": ("fedavg+etf", {"etf": {"scale": 1.5}}),
}
BRIEF: dict[str, Any] = {"data": "digits", "clients": 4, "rounds": 2, "epochs": 1, "batch": 32, "seed": 1}


class StopAfterOne(Display):
    """Pulls the plug after the first round."""

    def round(self, record: RoundRecord) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [*(name for name in RECIPES if name != "analytic"), "fedavg+analytic", *COMPOSITIONS]
)
def test_method_trains_resumes_and_is_the_same_for_any_number_of_workers(tmp_path: Path, method: str) -> None:
    brief = {**BRIEF, **{key: value for piece in method.split("+") for key, value in NEEDS.get(piece, {}).items()}}
    whole = fedframe.run(method, out=tmp_path / "whole", workers=1, progress=False, **brief)
    with pytest.raises(KeyboardInterrupt):
        fedframe.run(method, out=tmp_path / "cut", workers=2, progress=StopAfterOne(), **brief)
    cut = fedframe.resume(tmp_path / "cut", progress=False)
    for path in ("model.safetensors", *(f"personal/000/{client:06d}.safetensors" for client in range(4))):
        assert same_file(tmp_path / "whole" / path, tmp_path / "cut" / path), path
    assert whole.scores == cut.scores
    losses = [line["loss"] for line in whole.history]
    assert np.isfinite(losses).all()
    assert losses[1] < losses[0] or "ratioloss" in method  # its class weights, 1 at first, scale the loss
    generic, personal = whole.scores["generic"]["final"], whole.scores["personal"]["final"]
    assert (generic is not None) == make_method(method, {}).shares_a_model
    assert personal is not None
    assert personal > 0.3  # chance is a tenth
    client = whole.scores["client"]["final"]
    assert client is None or personal > client - 0.1, "the client stage does harm"


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_row_of_the_papers_tables_trains(tmp_path: Path, row: str) -> None:
    method, settings = ROWS[row]
    brief = {**BRIEF, "set": settings, "eval_every": 0, "workers": 1}
    done = fedframe.run(method, out=tmp_path / "run", progress=False, **brief)
    losses = [line["loss"] for line in done.history]
    assert np.isfinite(losses).all()
    assert losses[1] < losses[0]
    assert done.scores["generic"]["final"] is not None
    assert (done.scores["personal"]["final"] or 0) > 0.3  # chance is a tenth


@pytest.mark.parametrize(
    ("method", "first", "second", "slot"),
    [
        ("fednova+fedadam", "'fednova'", "'fedadam'", "merge"),
        ("etf+orthonormal", "'etf'", "'orthonormal'", "head"),
        ("mse+dot_regression", "'mse'", "'dot_regression'", "loss"),
        ("spherefed+fedetf", "'orthonormal' (of spherefed)", "'etf' (of fedetf)", "head"),
        ("fedloge+spherefed", "'sse_c' (of fedloge)", "'orthonormal' (of spherefed)", "head"),
        ("spherefed+ga_fr", "'ffc' (of spherefed)", "'ga_fr'", "server_stage"),
    ],
)
def test_two_parts_for_one_slot_are_refused_by_name(method: str, first: str, second: str, slot: str) -> None:
    with pytest.raises(SettingError, match=re.escape(f"{first} and {second} both claim the {slot} slot; leave one")):
        make_method(method, {})


@pytest.mark.parametrize(
    ("method", "settings", "first", "second"),
    [
        ("fedetf+auxiliary_heads", {}, "'auxiliary_heads'", "'fedetf_stage' would have no effect"),
        ("sse_c+auxiliary_heads", {"fine_tune": {"what": "head"}}, "'auxiliary_heads'", "'fine_tune' would have no"),
        ("etf+ga_fr", {}, "class vectors of 'etf'", "'ga_fr' would have no effect"),
        ("orthonormal+ga_fr", {}, "class vectors of 'orthonormal'", "'ga_fr' would have no effect"),
    ],
)
def test_stage_that_would_do_nothing_is_refused_by_name(
    method: str, settings: dict[str, dict[str, str]], first: str, second: str
) -> None:
    with pytest.raises(SettingError, match=f"{first}.*{second}"):
        make_method(method, settings)


@pytest.mark.parametrize("method", ["sse_c+auxiliary_heads", "fedetf+auxiliary_heads+ga_fr", "fedavg+ga_fr"])
def test_neighbours_of_what_is_refused_are_not(method: str) -> None:
    make_method(method, {})


def test_names_are_found_whatever_their_case_and_listed_once() -> None:
    with pytest.raises(SettingError, match="did you mean 'fedetf'"):
        make_method("FedETF", {})
    with pytest.raises(SettingError, match="a name is missing beside a"):
        make_method("fedavg+", {})
    with pytest.raises(SettingError) as caught:
        make_method("qqqqqq", {})
    names = str(caught.value).partition("choose one of: ")[2].rstrip(".").split(", ")
    assert len(names) == len(set(names)) > 20


@pytest.mark.parametrize("value", [float("inf"), float("nan"), float("-inf")])
def test_setting_of_a_part_is_finite(value: float) -> None:
    with pytest.raises(SettingError, match=r"ffc.ridge = .*must be a finite number; the default is 1e-06"):
        make_method("spherefed", {"ffc": {"ridge": value}})


def test_default_that_a_mistake_is_answered_with_is_the_methods() -> None:
    with pytest.raises(SettingError, match=r"fine_tune.what = 'none'.*the default is everything"):
        make_method("fedbabu", {"fine_tune": {"what": "none"}})
    with pytest.raises(SettingError, match=r"fine_tune.what = 'none'.*the default is all"):
        make_method("fedavg", {"fine_tune": {"what": "none"}})


@pytest.mark.parametrize(("method", "epochs"), [("ditto+fedbabu", 5), ("fedbabu+ditto", 0), ("ditto", 0)])
def test_of_two_methods_that_differ_in_fine_tuning_the_later_counts(method: str, epochs: int) -> None:
    (stage,) = (part for part in make_method(method, {}).parts if part.name == "fine_tune")
    assert vars(stage)["epochs"] == epochs


def test_memory_that_would_never_be_used_is_refused() -> None:
    for warm in (900, 1.5):
        with pytest.raises(SettingError, match=r"gmv.warm = .*use gmv.warm = 0.6"):
            fedframe.run("fedavg_etf", rounds=2, set={"gmv": {"warm": warm}})


def test_fedavg_etf_is_fedavg_with_etf_and_memory() -> None:
    assert make_method("fedavg_etf", {}).parts == make_method("fedavg+etf+gmv", {}).parts
    assert make_method("fedrane", {}).parts == make_method("fedavg+lra+gne", {}).parts
