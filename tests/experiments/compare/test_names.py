"""Names of runs and methods say what a run really has, and runs under earlier names are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedframe
from fedframe.errors import SettingError
from fedframe.experiments.compare.plan import default_out
from fedframe.experiments.compare.request import ComparisonRequest, make_plan
from fedframe.experiments.compare.rows import MethodRow
from fedframe.methods.parts.prox import Prox
from fedframe.methods.recipes import Recipe, method_text
from tests.helpers import blobs
from tests.own_code import PART, SMALL, write_own

ASKED: dict[str, Any] = {"rounds": 1, "batch": 8, "epochs": 1, "model": "mlp:4"}
RECIPE = Recipe("both", "Two objects.", parts=(Prox(0.3),))


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which is the current one."""
    monkeypatch.chdir(write_own(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_run_folder_is_named_after_the_value_that_was_set() -> None:
    asked = {**SMALL, "data": "digits", "clients": 2, "model": "mlp:4", "rounds": 1, "partition": "iid"}
    assert fedframe.run(Prox(0.2), **asked).folder == Path("runs/Prox-mu=0.2-digits-1")
    assert fedframe.run(Prox(0.2), set={"mu": 0.5}, **asked).folder == Path("runs/Prox-mu=0.5-digits-1")


def labels(*methods: Any, sweep: dict[str, Any] | None = None, **settings: Any) -> list[str]:
    """How methods are called in the tables."""
    plan = make_plan(ComparisonRequest(methods, sweep=sweep or {}, out="o", settings={**ASKED, **settings}))
    return [row.label for row in plan.rows]


def test_labels_of_objects_have_no_value_that_the_run_has_not() -> None:
    given = [Prox(0.2), ["scaffold", Prox(0.3)], RECIPE]
    assert labels(*given) == ["Prox(mu=0.2)", "scaffold+Prox(mu=0.3)", "both(Prox(mu=0.3))"]
    assert labels(*given, set={"mu": 0.5}) == ["Prox(mu=0.5)", "scaffold+Prox(mu=0.5)", "both(Prox(mu=0.5))"]
    assert labels(Prox(0.2), sweep={"mu": [0.1, 1.0]}) == ["Prox"]
    assert labels({"method": Prox(0.2), "mu": 0.7}) == ["Prox mu=0.7"]
    assert labels({"method": Prox(0.2), "mu": 0.7}, set={"mu": 0.5}) == ["Prox mu=0.7"]
    assert labels({"method": Prox(0.2), "label": "Prox(mu=0.2), mine"}, set={"mu": 0.5}) == ["Prox(mu=0.2), mine"]
    assert labels("fedprox?prox.mu=0.1", "mine.py:Decay", set={"mu": 0.5}) == ["fedprox prox.mu=0.1", "mine.py:Decay"]


def test_objects_that_one_setting_makes_the_same_are_refused() -> None:
    with pytest.raises(SettingError, match=r"Two methods are called 'Prox\(mu=0.5\)'"):
        labels(Prox(0.2), Prox(0.3), set={"mu": 0.5})


def test_default_folder_of_a_comparison_is_that_of_earlier_versions() -> None:
    row = MethodRow(method_text(Prox(0.2)), "Prox(mu=0.2)", old_label="Prox(mu=0.2)")
    renamed = row.relabelled({"prox": {"mu": 0.5}})
    assert renamed.label == "Prox(mu=0.5)"
    assert default_out([renamed], ASKED, ()) == default_out([row], ASKED, ())


def compare(method: Any = "fedavg", **more: Any) -> Path:
    """The only run of a comparison of one method, which is run if it is not there."""
    asked = {**ASKED, "data": "npz:mine.npz", "partition": "user", "cores": 1, "progress": False, **more}
    found = fedframe.compare([method], seeds=1, out="o", **asked)
    (outcome,) = found.all_outcomes
    assert outcome.state == "finished"
    return outcome.cell.folder


@pytest.mark.slow
def test_run_under_an_earlier_label_is_found() -> None:
    folder = compare()
    old = folder.parent.with_name(folder.parent.name.replace("fedavg", "Some-name"))
    folder.parent.rename(old)
    written = (old / "seed-0" / "summary.json").stat().st_mtime_ns
    assert compare() == old / "seed-0"
    assert (old / "seed-0" / "summary.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_folder_that_holds_another_run_than_its_name_says_is_passed_by() -> None:
    """As if a default of Fedframe had changed since: the name stays, and the run has the value of then."""
    folder = compare()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "momentum": 0.123}))
    other = compare()
    assert other.parent.name == f"{folder.parent.name}-2"
    assert compare() == other
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert compare() == folder


@pytest.mark.slow
def test_run_that_went_on_with_changed_code_does_not_count_for_the_code_it_is_named_after(own: Path) -> None:
    folder = compare("mine.py:Decay")
    (folder / "summary.json").unlink()  # as if it had been killed before its end
    (own / "mine.py").write_text(PART.replace("0.01", "0.02"))
    fedframe.resume(folder, changed_code=True, progress=False)
    (own / "mine.py").write_text(PART)
    other = compare("mine.py:Decay")
    assert other != folder
    record = json.loads((other / "inputs.json").read_text())
    assert "before" not in record
    assert compare("mine.py:Decay") == other


@pytest.mark.slow
def test_same_data_as_objects_are_found_again() -> None:
    assert compare(data=blobs()) == compare(data=blobs()) != compare(data=blobs(seed=1))
