"""What clients gain by joining: alone, shared and personal, with intervals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedframe
from fedframe.analysis.finished_run import FinishedRun
from fedframe.core.measures import Z
from fedframe.errors import DataError, SettingError
from fedframe.experiments.gain import gain
from fedframe.metrics.paired import matched_shares
from fedframe.runs.gain import compare_client, lines_of, overall, score_at
from fedframe.util.files import read_json, write_json
from tests.helpers import blobs

SMALL: dict[str, Any] = {"rounds": 3, "epochs": 1, "workers": 1, "progress": False, "model": "mlp:8", "local_test": 0.3}


def table(values: dict[str, list[float | None]], half: float = 0.05) -> dict[str, Any]:
    found: dict[str, Any] = {"clients": ["a", "b", "c"], "test_samples": [50, 60, 70]}
    for key, each in values.items():
        found[key] = each
        found[f"{key}_low"] = [None if v is None else v - half for v in each]
        found[f"{key}_high"] = [None if v is None else v + half for v in each]
    return found


def test_gains_losses_and_unclear_differences_are_told_apart() -> None:
    joined = table({"client": [0.8, 0.5, 0.6], "personal": [0.9, 0.4, None]})
    alone = table({"client": [None] * 3, "personal": [0.7, 0.6, 0.58]})
    rows = [compare_client(joined, score_at(alone, "personal", place), place) for place in range(3)]
    assert [row["verdict"] for row in rows] == ["gains", "loses", "no clear difference"]
    assert [row["joined"] for row in rows] == ["personal", "personal", "shared"]
    half = 0.05 * math.sqrt(2)
    assert rows[0]["gain"] == pytest.approx({"value": 0.2, "low": 0.2 - half, "high": 0.2 + half, "error": half / Z})
    content = {"metric": "accuracy", "clients": rows, **overall(rows)}
    assert content["counts"] == {"gains": 1, "no clear difference": 1, "loses": 1}
    assert content["mean"]["value"] == pytest.approx((0.2 - 0.2 + 0.02) / 3)
    text = "\n".join(lines_of(content))
    assert "1 of 3 clients gain clearly, 1 loses, for 1 there is no clear difference" in text
    assert text.index("a  ") < text.index("c  ") < text.index("b  ")  # who gains most stands first


def test_an_interval_that_is_cut_at_one_counts_by_its_longer_side() -> None:
    joined, alone = table({"client": [None] * 3, "personal": [0.98] * 3}), table({"personal": [0.98] * 3})
    joined["personal_high"] = [1.0] * 3
    assert compare_client(joined, score_at(alone, "personal", 0), 0)["gain"]["high"] == pytest.approx(
        0.05 * math.sqrt(2)
    )


@pytest.mark.slow
def test_alone_is_the_local_recipe_with_the_same_budget_and_is_run_once(tmp_path: Path) -> None:
    data = blobs()
    result = fedframe.run("fedprox", data=data, out=tmp_path / "run", set={"fine_tune": {"epochs": 2}}, **SMALL)
    found = gain(tmp_path / "run", data=data, model=None, progress=False)
    other = fedframe.run("local", data=data, out=tmp_path / "local", set={"fine_tune": {"epochs": 2}}, **SMALL)
    alone = read_json(other.folder / "client_scores.json")["personal"]
    assert [row["alone"]["value"] for row in found["clients"]] == alone
    table = read_json(result.folder / "client_scores.json")
    assert [row["shared"]["value"] for row in found["clients"]] == table["client"]
    assert [row["test_samples"] for row in found["clients"]] == table["test_samples"]
    before = (tmp_path / "run/alone/model.safetensors").stat().st_mtime_ns
    assert gain(tmp_path / "run", data=data, progress=False) == found
    assert (tmp_path / "run/alone/model.safetensors").stat().st_mtime_ns == before
    page = result.report(quick=True).read_text()
    assert "What clients gain by joining" in page


@pytest.mark.slow
def test_differences_are_those_of_pairs_where_models_are_kept(tmp_path: Path) -> None:
    data = blobs()
    result = fedframe.run("fedprox", data=data, out=tmp_path / "run", **SMALL)
    found = gain(result.folder, data=data, progress=False)
    alone = fedframe.Predictor.load(tmp_path / "run/alone", client=0)
    own, federation = result.personal(0), FinishedRun(result.folder, None, data).job.federation
    rows = federation.local_test[0]
    pool = federation.source.train if federation.local_test_pool == "train" else federation.source.test
    assert pool is not None
    x, names = pool.x.take(rows), [federation.source.classes[int(c)] for c in pool.y[rows]]
    right = [[said == true for said, true in zip(each.predict(x), names, strict=True)] for each in (own, alone)]
    better = sum(a and not b for a, b in zip(*right, strict=True))
    worse = sum(b and not a for a, b in zip(*right, strict=True))
    row = found["clients"][0]
    assert row["paired"]
    assert row["gain"] == pytest.approx(matched_shares(better, worse, len(names)).plain())
    apart = compare_client(read_json(result.folder / "client_scores.json"), row["alone"], 0)["gain"]
    assert row["gain"]["error"] < apart["error"]


@pytest.mark.slow
def test_models_that_were_not_kept_are_compared_by_their_scores(tmp_path: Path) -> None:
    data = blobs()
    fedframe.run("fedavg", data=data, out=tmp_path / "run", **{**SMALL, "save_personal": False})
    found = gain(tmp_path / "run", data=data, progress=False)
    assert {row["paired"] for row in found["clients"]} == {False}


@pytest.mark.slow
def test_data_from_python_must_be_given_again(tmp_path: Path) -> None:
    fedframe.run("fedavg", data=blobs(), out=tmp_path / "run", **SMALL)
    with pytest.raises(SettingError, match="gain\\(folder, data="):
        gain(tmp_path / "run", progress=False)


@pytest.mark.slow
def test_a_run_that_is_not_finished_or_has_no_test_data_is_refused(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data=blobs(), out=tmp_path / "run", **{**SMALL, "local_test": 0.0})
    with pytest.raises(DataError, match="nothing to compare"):
        gain(result.folder, data=blobs(), progress=False)
    (result.folder / "summary.json").unlink()
    with pytest.raises(DataError, match="not finished"):
        gain(result.folder, data=blobs(), progress=False)


@pytest.mark.slow
def test_clients_with_little_data_gain_by_joining(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    w = draw.normal(size=(3, 12))
    x = draw.normal(size=(900, 12)).astype(np.float32)
    data = {"x_train": x, "y_train": (x @ w.T).argmax(1), "x_test": x[:60], "y_test": (x[:60] @ w.T).argmax(1)}
    given = {**SMALL, "clients": 6, "partition": "iid", "local_test": 0.8, "rounds": 15, "epochs": 2}
    fedframe.run("fedavg", data=data, out=tmp_path / "run", **given)
    found = gain(tmp_path / "run", data=data, progress=False)
    assert found["mean"]["low"] > 0


@pytest.mark.slow
def test_an_organiser_sees_what_it_knows(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data=blobs(), out=tmp_path / "run", **SMALL)
    text = (result.folder / "config.yaml").read_text().replace("data: python", "data: none")
    (result.folder / "config.yaml").write_text(text.replace("# checksum", "# edited"))
    write_json(result.folder / "x.json", {})
    found = gain(result.folder, progress=False)
    assert found["mean"] is None
    assert "not known here" in lines_of(found)[-1]
