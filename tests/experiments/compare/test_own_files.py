"""Comparisons of a user's own files: found from relative paths, and run anew when a file has changed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fedframe
from fedframe.errors import SettingError
from fedframe.experiments.compare.result import Comparison
from fedframe.experiments.grid.cell import Cell
from fedframe.experiments.grid.cell_process import attempt
from fedframe.experiments.papers.cells import Choice
from fedframe.experiments.papers.run import fill
from fedframe.methods.parts.prox import Prox
from tests.own_code import HELPER, NET, PART, SMALL, write_own

pytestmark = pytest.mark.slow  # trains many small runs

COMPARED: dict[str, Any] = {**SMALL, "data": "npz:mine.npz", "model": "net.py:Net", "seeds": 1, "cores": 1}
COMPARED.pop("workers")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which is the current one."""
    monkeypatch.chdir(write_own(tmp_path))
    return tmp_path


def compare(methods: Any = ("fedavg", "mine.py:Decay"), **given: Any) -> Comparison:
    return fedframe.compare([*methods], out="out", **{**COMPARED, **given})


def cells(found: Comparison) -> dict[str, Path]:
    return {label: outcomes[0].cell.folder for label, outcomes in found.outcomes.items()}


def when_made(found: Comparison) -> dict[str, int]:
    return {label: (folder / "summary.json").stat().st_mtime_ns for label, folder in cells(found).items()}


def test_own_method_is_compared_and_found_again() -> None:
    first = compare()
    assert [outcome.state for outcomes in first.outcomes.values() for outcome in outcomes] == ["finished"] * 2
    again = compare()
    assert cells(again) == cells(first)
    assert when_made(again) == when_made(first)
    assert (
        first.scores["mine.py:Decay"]["generic.final"].values == again.scores["mine.py:Decay"]["generic.final"].values
    )


def test_own_method_from_yaml_and_in_a_table(own: Path) -> None:
    config = own / "asked.yaml"
    config.write_text(yaml.safe_dump({"methods": ["fedavg", {"method": "mine.py:Decay", "set": {"amount": 0.1}}]}))
    found = fedframe.compare(config=config, out="yaml", **COMPARED)
    assert found.labels == ["fedavg", "mine.py:Decay amount=0.1"]
    settings = {"data": f"npz:{own / 'mine.npz'}", "model": "net.py:Net", "partition": "user", "rounds": 1, "epochs": 1}
    table = {
        "title": "t", "paper": "p", "unit": "percent", "scores": {"acc": "generic.final"}, "settings": settings,
        "columns": {"mine": {}}, "rows": [{"name": "Decay", "method": "mine.py:Decay", "paper": [50.0]}],
    }  # fmt: skip
    (own / "table.yaml").write_text(yaml.safe_dump(table))
    for _ in range(2):
        filled = fill("table.yaml", Choice(out=own / "papers"), cores=1, progress=False)
        assert [outcome.state for outcome in filled.outcomes.values()] == ["finished"]
    (own / "helper.py").write_text(HELPER.format(strength=100.0))
    other = fill("table.yaml", Choice(out=own / "papers"), cores=1, progress=False)
    assert other.outcomes.keys().isdisjoint(filled.outcomes)


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"mine.py": PART.replace("sum(weights", "2 * sum(weights")}, {"mine.py:Decay"}),
        ({"helper.py": HELPER.format(strength=50.0)}, {"mine.py:Decay"}),  # imported by mine.py
        ({"net.py": NET.replace("8", "9")}, {"fedavg", "mine.py:Decay"}),
        ({"other.py": "x = 1\n"}, set()),
    ],
)
def test_changed_code_is_another_cell(own: Path, change: dict[str, str], changed: set[str]) -> None:
    first = compare()
    for name, text in change.items():
        (own / name).write_text(text)
    second = compare()
    assert {label for label in first.labels if cells(first)[label] != cells(second)[label]} == changed
    for label in changed:
        ours, theirs = (found.outcomes[label][0].cell.folder / "model.safetensors" for found in (first, second))
        assert ours.read_bytes() != theirs.read_bytes()


def test_changed_data_are_other_cells_and_a_touched_file_is_not(own: Path) -> None:
    first = compare(["fedavg"])
    write_own(own)  # the same content, written again
    assert cells(compare(["fedavg"])) == cells(first)
    write_own(own, seed=1)
    assert cells(compare(["fedavg"])) != cells(first)
    write_own(own)
    assert when_made(compare(["fedavg"])) == when_made(first)  # back as it was: the first run counts again


def test_large_files_are_hashed_once_for_a_size_and_a_time(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedframe.jobs.inputs.SMALL", 0)
    first = compare(["fedavg"])
    monkeypatch.setattr("fedframe.jobs.inputs.large_file_digest", lambda *key: pytest.fail("it was read again"))
    assert cells(compare(["fedavg"])) == cells(first)


def test_file_that_changes_while_cells_run_is_not_taken_for_the_old_one(own: Path) -> None:
    found = compare()
    cell = next(iter(found.outcomes["mine.py:Decay"])).cell
    (own / "helper.py").write_text(HELPER.format(strength=7.0))
    told: list[dict[str, Any]] = []
    attempt(Cell("late", cell.settings, own / "late", inputs=cell.inputs), 1, told.append, keep_state=False)
    assert "helper.py was changed meanwhile" in told[-1]["failed"]
    assert not (own / "late" / "config.yaml").exists()


@pytest.mark.slow
def test_parts_recipes_and_nets_are_compared_as_objects(own: Path) -> None:
    nets = [torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.ReLU()) for width in (4, 6)]
    methods: list[Any] = ["fedavg", Prox(0.5), ["scaffold", Prox], {"method": Prox(2.0), "label": "strong", "lr": 0.05}]
    found = fedframe.compare(methods, out="objects", **{**COMPARED, "model": nets[0]})
    assert found.labels == ["fedavg", "Prox(mu=0.5)", "scaffold+Prox(mu=0.01)", "strong"]
    assert all(outcome.state == "finished" for outcomes in found.outcomes.values() for outcome in outcomes)
    named = fedframe.compare(["fedprox?prox.mu=0.5"], out="named", **{**COMPARED, "model": nets[0]})
    for score in ("generic.final", "personal.final"):
        assert found.scores["Prox(mu=0.5)"][score].values == named.scores["fedprox prox.mu=0.5"][score].values
    before = when_made(found)
    assert when_made(fedframe.compare(methods, out="objects", **{**COMPARED, "model": nets[0]})) == before
    cases = fedframe.compare_each(
        [Prox(0.5)], sweep={"model": nets}, out="nets", **{k: v for k, v in COMPARED.items() if k != "model"}
    )
    assert [*cases] == ["model=Sequential", "model=Sequential-2"]
    tuned = fedframe.compare([Prox], sweep={"mu": [0.1, 1]}, out="tuned", **COMPARED)
    assert tuned.labels == ["Prox"]  # a value that is swept is no part of the name
    assert tuned.chosen("Prox") is not None


def test_sweep_and_set_know_own_parts_by_bare_names() -> None:
    found = compare(["mine.py:Decay"], sweep={"amount": [0.001, 10.0]})
    chosen = found.chosen("mine.py:Decay")
    assert chosen is not None
    assert str(chosen) == "decay.amount=0.001"
    found = fedframe.compare(["fedavg", "mine.py:Decay"], out="set", **COMPARED, set={"amount": 0.5})
    assert found.outcomes["mine.py:Decay"][0].cell.settings.set == {"decay": {"amount": 0.5}}
    with pytest.raises(SettingError, match="No part here has a setting 'amonut'; did you mean 'amount'"):
        compare(set={"amonut": 0.5})


def test_folders_of_earlier_versions_count_as_they_are(own: Path) -> None:
    """Without a record, and named after relative paths: as comparisons were before inputs were recorded."""
    from fedframe.experiments.grid.naming import digest

    first = compare(["fedavg"])
    folder = cells(first)["fedavg"]
    as_asked = first.outcomes["fedavg"][0].cell.settings.model_copy(
        update={"data": "npz:mine.npz", "model": "net.py:Net"}
    )
    (folder / "inputs.json").unlink()
    earlier = own / "out" / "runs" / f"fedavg-{digest(as_asked)}"
    folder.parent.rename(earlier)
    before = (earlier / "seed-0" / "summary.json").stat().st_mtime_ns
    time.sleep(0.01)
    again = compare(["fedavg"])
    assert cells(again)["fedavg"] == Path("out/runs", earlier.name, "seed-0")
    assert when_made(again)["fedavg"] == before
