"""A bench from the command to the page: choices by held-out data alone, the same JSON after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedframe.errors import DataError, SettingError
from fedframe.experiments.bench.cost import Speed
from fedframe.experiments.bench.run import Bench, bench, prepare, print_scenes, write_page
from fedframe.experiments.bench.scene import scene_names
from fedframe.experiments.grid.archive import pack, unpack
from fedframe.experiments.tables import markdown
from tests.helpers import blobs
from tests.hold import PROGRAM, count_finished, environment, wait_until

pytestmark = pytest.mark.slow  # trains many small runs

SCENE: dict[str, Any] = {
    "title": "blobs",
    "settings": {
        "data": "npz:{data_dir}/blobs.npz", "model": "mlp:8", "partition": "user", "rounds": 4, "epochs": 1, "batch": 8,
        "lr_schedule": "constant", "momentum": 0.0, "weight_decay": 0.0, "clip": None,
    },
    "rows": ["spherefed", "fedper"],
    "tuning": {"mode": "halving", "start": 0.5, "rates": [1.0e-5, 1.0e-3, 1.0e-2, 1.0e-1, 1.0e+30]},
    "scores": ["balanced"],
    "notes": ["A note of the scene."],
}  # fmt: skip
# All kinds of rows: one of the scene, one without a shared model, one with another schedule, one without training.
METHODS = ["spherefed", "fedper", "fedavg, rate cut", "untrained + ffc"]
TIMES = ("seconds", "cpu_seconds", "seconds_to")


def prepare_folder(folder: Path, poisoned: bool = False) -> Path:
    folder.mkdir()
    data = blobs()
    if poisoned:
        data["y_test"] = (data["y_test"] + 1) % 3
    np.savez(folder / "blobs.npz", **data)
    (folder / "mine.yaml").write_text(yaml.safe_dump(SCENE))
    return folder


def run(folder: Path, **more: Any) -> dict[str, Any]:
    asked = {"methods": METHODS, "controls": False, **more}
    machine = {"data_dir": str(folder)}
    return bench(
        Bench(str(folder / "mine.yaml"), runs=folder / "runs", machine=machine, **asked), cores=2, progress=False
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepare_folder(tmp_path_factory.mktemp("bench") / "whole")
    run(folder)
    return folder


def result(folder: Path) -> dict[str, Any]:
    """The JSON without what is a time or a place."""
    content: dict[str, Any] = json.loads((folder / "runs" / "mine" / "mine.json").read_text())
    for name in ("checksum", "cpu_hours", "cpu_hours_estimated", "command", "commit"):
        content.pop(name)
    for case in content["results"].values():
        case.pop("command")
        case["definitions"] = {}
        for method in case["methods"]:
            method.pop("runs")  # named after the data's path, too
            method["scores"] = {name: value for name, value in method["scores"].items() if not name.startswith(TIMES)}
    return content


def choices(folder: Path) -> dict[str, Any]:
    case = result(folder)["results"][""]
    return {"chosen": {m["label"]: m["chosen"] for m in case["methods"]}, "tuning": case["tuning"]}


def test_result_holds_rows_controls_statistics_and_where_it_came_from(whole: Path) -> None:
    content = json.loads((whole / "runs" / "mine" / "mine.json").read_text())
    case = content["results"][""]
    labels = [method["label"] for method in case["methods"]]
    assert labels[:3] == ["fedavg", "spherefed", "fedper"]
    assert labels[3:] == METHODS[2:]
    by_label = {method["label"]: method for method in case["methods"]}
    assert by_label["fedavg"]["chosen"]["lr"] not in (1e-5, 1e30)
    assert by_label["untrained + ffc"]["chosen"] is None
    assert {"generic.last", "generic.last_five", "generic.final", "personal.final", "balanced"} <= {*case["accuracies"]}
    assert by_label["spherefed"]["difference"]["generic.final"]["pairs"] == 3
    assert case["tuning"]["select"]["fedper"] == "personal.final"
    assert content["cpu_hours"] > 0
    assert content["runs"] == len([*(whole / "runs").rglob("config.yaml")])


def test_every_tuning_run_has_the_test_data_put_aside_and_every_final_run_none(whole: Path) -> None:
    def shares(kind: str) -> set[float]:
        return {
            yaml.safe_load(path.read_text())["validate_share"]
            for path in (whole / "runs" / "mine" / kind).rglob("config.yaml")
        }

    assert shares("tuning") == {0.2}
    assert shares("runs") == {0.0}


def test_untrained_net_keeps_its_first_weights(whole: Path) -> None:
    runs = [*(whole / "runs" / "mine" / "runs").glob("untrained*/seed-0")]
    assert len(runs) == 1
    config = yaml.safe_load((runs[0] / "config.yaml").read_text())
    assert (config["rounds"], config["steps"], config["lr"]) == (1, 1, 1e-30)


def test_choice_is_the_same_with_a_poisoned_test_set(whole: Path, tmp_path: Path) -> None:
    poisoned = prepare_folder(tmp_path / "poisoned", poisoned=True)
    run(poisoned)
    assert choices(poisoned) == choices(whole)
    before, after = (
        result(folder)["results"][""]["methods"][0]["scores"]["generic.final"] for folder in (whole, poisoned)
    )
    assert before["values"] != after["values"]  # while the final scores do know the test labels


def test_page_is_written_from_the_json_alone(whole: Path, tmp_path: Path) -> None:
    made = (whole / "runs" / "mine" / "mine.md").read_text()
    (tmp_path / "mine.json").write_text((whole / "runs" / "mine" / "mine.json").read_text())
    assert write_page(tmp_path / "mine.json").read_text() == made
    for text in (
        "# mine: blobs",
        "| batch | 8 |",
        "Difference to fedavg at the same schedule",
        "CPU hours",
        "A note of the",
    ):
        assert text in made
    assert "lr_schedule = step:0.1@0.9; no other row" in made
    assert "generic, last five: the best row is spherefed" in made
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match="holds no result of a bench"):
        write_page(tmp_path / "other.json")


def test_finished_bench_runs_nothing_and_a_smaller_one_reuses_its_runs(whole: Path, tmp_path: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in (whole / "runs").rglob("summary.json")}
    run(whole)
    run(whole, methods=["spherefed"], out=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (whole / "runs").rglob("summary.json")} == times
    small = json.loads((tmp_path / "mine.json").read_text())
    assert [row["label"] for row in small["rows"]] == ["fedavg", "spherefed"]
    assert (tmp_path / "mine.md").exists()


def test_killed_bench_goes_on_to_the_same_json(whole: Path, tmp_path: Path) -> None:
    cut = prepare_folder(tmp_path / "cut")
    arguments = [
        "bench",
        "mine.yaml",
        *METHODS,
        "--no-controls",
        "--runs",
        "runs",
        "--data-dir",
        str(cut),
        "--cores",
        "2",
        "--quiet",
    ]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for done in (7, 43):  # within the tuning, and later
        held = [sys.executable, "-c", PROGRAM.format(rounds=1, finished=done), *arguments]
        process = subprocess.Popen(held, cwd=cut, env=environment(), **quiet)
        wait_until(lambda done=done, process=process: count_finished(cut) >= done or process.poll() is not None)  # type: ignore[misc]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert count_finished(cut) >= done
        assert not (cut / "runs" / "mine" / "mine.json").exists()
    code = "from fedframe.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=cut, check=True, capture_output=True)
    assert result(cut) == result(whole)


def test_scenes_are_listed_with_their_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_scenes(tmp_path)
    shown = capsys.readouterr().out
    assert all(name in shown for name in scene_names())
    assert "right within a factor of" in " ".join(shown.split())
    assert Speed(tmp_path).known  # measured once, and kept


def test_markdown_of_a_page_has_no_empty_rows(whole: Path) -> None:
    from fedframe.experiments.bench.page import make_page

    text = markdown(make_page(json.loads((whole / "runs" / "mine" / "mine.json").read_text())))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.strip("| ") for line in tables)


def test_finished_runs_go_to_another_machine_in_one_file(whole: Path, tmp_path: Path) -> None:
    cells, there = tmp_path / "mine.cells.zip", tmp_path / "there"
    run(whole, cells=cells)
    data = cells.read_bytes()
    asked: dict[str, Any] = {"methods": METHODS, "controls": False, "cells": cells, "out": tmp_path / "out"}
    machine = {"data_dir": str(whole)}
    bench(Bench(str(whole / "mine.yaml"), runs=there, machine=machine, **asked), cores=2, progress=False)
    assert not [*there.rglob("model.safetensors")]  # nothing was run
    assert cells.read_bytes() == data
    before = json.loads((whole / "runs" / "mine" / "mine.json").read_text())
    after = json.loads((tmp_path / "out" / "mine.json").read_text())
    for content in (before, after):
        content.pop("checksum")
        content.pop("cpu_hours_estimated")
        for case in content["results"].values():
            for method in case["methods"]:
                method.pop("runs")
    assert before == after
    with zipfile.ZipFile(cells) as packed:
        assert not any(str(whole) in packed.read(name).decode() for name in packed.namelist())


def test_file_of_finished_runs_holds_nothing_else(tmp_path: Path) -> None:
    for name in ("../config.yaml", "a/model.py"):
        path = tmp_path / "bad.zip"
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr(name, "x")
        with pytest.raises(DataError, match="no file of a finished run"):
            unpack(path, tmp_path / "runs", tmp_path)
    path.write_text("no zip")
    with pytest.raises(DataError, match="no file of finished runs"):
        unpack(path, tmp_path / "runs", tmp_path)


def test_packed_runs_name_no_folder_when_the_data_are_behind_a_link(tmp_path: Path) -> None:
    real, link, run = tmp_path / "real", tmp_path / "link", tmp_path / "runs" / "a"
    real.mkdir()
    link.symlink_to(real)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(f"data: npz:{link}/x.npz\n")
    (run / "summary.json").write_text(f'{{"path": "{real}/x.npz"}}')
    assert pack(tmp_path / "cells.zip", tmp_path / "runs", link) == 1
    with zipfile.ZipFile(tmp_path / "cells.zip") as packed:
        assert packed.read("a/config.yaml").decode() == "data: npz:{data_dir}/x.npz\n"
        assert packed.read("a/summary.json").decode() == '{"path": "{data_dir}/x.npz"}'


def test_case_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="huang has no case 'three'"):
        prepare(Bench("huang", cases=["three"]))
    assert [plan.case for plan in prepare(Bench("huang", cases=["two*"])).plans] == ["two classes"]
