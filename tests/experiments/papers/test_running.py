"""`fedframe paper` as a person uses it: small tables on digits and on small files of the public sets' formats."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedframe.data.cifar import CIFAR10
from fedframe.data.mnist import FILES
from fedframe.experiments.papers.cells import Choice
from fedframe.experiments.papers.run import fill
from fedframe.settings import read_config
from tests.cli.test_cli import PROGRAM, fedframe
from tests.data.conftest import idx_bytes, write_gz
from tests.hold import DEADLINE, environment, wait_until, wait_until_free
from tests.hold import PROGRAM as HELD

pytestmark = pytest.mark.slow

TABLE: dict[str, Any] = {
    "title": "a table for tests",
    "paper": "Nobody, Nowhere 2024, Table 1",
    "unit": "percent",
    "scores": {"General": "generic.last_five", "Personal": "personal.final"},
    "settings": {"data": "digits", "clients": 4, "rounds": 6, "epochs": 1, "batch": 32, "model": "mlp:16"},
    "columns": {"Dir(0.5)": {"partition": "dirichlet:0.5"}, "IID": {"partition": "iid"}},
    "rows": [
        {"name": "FedAvg", "method": "fedavg", "paper": [80.0, 90.0, 85.0, None]},
        {"name": "FedProx", "method": "fedprox", "settings": {"set": {"prox": {"mu": 0.1}}}, "paper": [1, 2, 3, 4]},
        {"name": "Explodes", "method": "fedavg", "settings": {"lr": 1e30}, "paper": [None, None, None, 50.0]},
    ],
    "notes": ["A note."],
}


def write_table(folder: Path, **changes: Any) -> str:
    """The table as a file of one's own."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**TABLE, **changes}, sort_keys=False))
    return "tiny.yaml"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the table was filled, and what the command printed."""
    folder = tmp_path_factory.mktemp("paper")
    table = write_table(folder)
    return folder, fedframe("paper", table, "--scale", 0.25, "--seeds", 2, "--out", "out", folder=folder)


def read_json(folder: Path, name: str = "tiny-scale-0.25.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "out" / name).read_text())
    return content


def test_tables_are_listed(tmp_path: Path) -> None:
    out = fedframe("paper", folder=tmp_path)
    assert "fedrane-1" in out
    assert "fedloge-11" in out
    assert "emnist-letters" in out


def test_numbers_are_those_of_the_runs_beside_the_papers(filled: tuple[Path, str]) -> None:
    folder, _ = filled
    content = read_json(folder)
    cells = {(c["row"], c["column"], c["seed"]): c for c in content["cells"]}
    assert len(cells) == 12
    for entry in content["numbers"]:
        if entry["row"] == "Explodes":
            assert (entry["ours"], entry["difference"], entry["remark"]) == (None, None, "diverged")
            continue
        folders = [cells[entry["row"], entry["column"], seed]["folder"] for seed in (0, 1)]
        kind, score = {"General": ("generic", "last_five"), "Personal": ("personal", "final")}[entry["score"]]
        runs = [json.loads((folder / "out" / each / "summary.json").read_text()) for each in folders]
        assert entry["values"] == [run["scores"][kind][score] for run in runs]
        assert entry["ours"] == pytest.approx(np.mean(entry["values"]))
        if entry["paper"] is not None:
            assert entry["difference"] == pytest.approx(entry["ours"] - entry["paper"])
    first = content["numbers"][0]
    assert (first["row"], first["column"], first["score"], first["paper"]) == ("FedAvg", "Dir(0.5)", "General", 0.8)
    assert [run["rounds"] for run in runs] == [3, 3]


def test_table_is_printed_and_saved_in_three_forms(filled: tuple[Path, str]) -> None:
    folder, out = filled
    text = (folder / "out" / "tiny-scale-0.25.md").read_text()
    assert text in out
    assert "\x1b" not in out
    assert "| FedAvg | " in text
    assert "± " in text
    assert "(80.0, -" in text
    assert "diverged (50.0)" in text
    assert re.search(r"smaller lr .* to try others: fedframe run --config \S+/config.yaml --out runs/other --lr", text)
    assert "3 of 6 rounds and 50.0 % of the training samples of every class" in text
    assert "A note." in text
    assert "smaller lr" in text
    assert "the shared model on the global test set, mean of the last five evaluations" in text
    with (folder / "out" / "tiny-scale-0.25.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    assert float(lines[0]["difference"]) == pytest.approx(float(lines[0]["ours"]) - 0.8)


def test_filled_table_runs_nothing_again(filled: tuple[Path, str]) -> None:
    folder, _ = filled
    before = read_json(folder)
    times = {path: path.stat().st_mtime_ns for path in (folder / "out" / "cells").rglob("summary.json")}
    out = fedframe("paper", "tiny.yaml", "--scale", 0.25, "--seeds", 2, "--out", "out", folder=folder)
    assert "12 runs, 12 of them finished before" in out
    assert times == {path: path.stat().st_mtime_ns for path in (folder / "out" / "cells").rglob("summary.json")}
    assert read_json(folder) == before


def test_rows_columns_and_settings_of_parts_are_picked(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    picked = ["--rows", "fedp*", "--columns", "iid", "--set", "prox.mu=0.7", "--scale", "0.25", "--out", "out"]
    out = fedframe("paper", table, *picked, "--quiet", folder=tmp_path)
    assert out == ""
    (cell,) = read_json(tmp_path)["cells"]
    config = yaml.safe_load((tmp_path / "out" / cell["folder"] / "config.yaml").read_text())
    assert config["set"] == {"prox": {"mu": 0.7}}
    assert config["data_share"] == 0.5
    text = (tmp_path / "out" / "tiny-scale-0.25.md").read_text()
    assert "## IID\n\n| | General | Personal |" in text  # a single column shows its scores side by side


def test_dry_run_prints_cells_and_runs_nothing(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    out = fedframe("paper", table, "--scale", 0.25, "--dry-run", "--cells", folder=tmp_path)
    assert "FedProx, IID (waiting)" in out
    assert "rounds: 3" in out
    assert "mu: 0.1" in out
    assert "local steps" in out
    assert "6 runs, about " in out
    assert [path.name for path in tmp_path.iterdir()] == [table]


def test_killed_table_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    table = write_table(
        tmp_path,
        settings={**TABLE["settings"], "rounds": 40, "eval_every": 10},
        rows=[row for row in TABLE["rows"] if row["name"] != "Explodes"],
    )
    command = [str(PROGRAM), "paper", table, "--quiet", "--cores", "2", "--out"]
    held = [sys.executable, "-c", HELD.format(rounds=1, finished=1), *command[1:], "out"]
    process = subprocess.Popen(held, cwd=tmp_path, start_new_session=True, env=environment())
    wait_until(lambda: bool(finished(tmp_path / "out")))
    started = list((tmp_path / "out" / "cells").rglob("metrics.jsonl"))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until_free(tmp_path / "out")
    assert 1 <= len(finished(tmp_path / "out")) < 4
    assert started
    subprocess.run([*command, "out"], cwd=tmp_path, check=True)
    subprocess.run([*command, "whole"], cwd=tmp_path, check=True)
    cut, whole = (json.loads((tmp_path / name / "tiny.json").read_text()) for name in ("out", "whole"))
    assert cut == whole
    assert (tmp_path / "out" / "tiny.md").read_text() == (tmp_path / "whole" / "tiny.md").read_text()


def finished(out: Path) -> list[Path]:
    return list((out / "cells").rglob("summary.json"))


def test_interrupt_ends_with_a_sentence(tmp_path: Path) -> None:
    table = write_table(tmp_path, settings={**TABLE["settings"], "rounds": 100_000})
    command = [str(PROGRAM), "paper", table, "--out", "out", "--rows", "FedAvg"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes)
    wait_until(lambda: bool(list((tmp_path / "out").rglob("metrics.jsonl"))))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "0 of 2 cells are finished and kept; the same command goes on." in said
    assert "Traceback" not in said


# -- data --------------------------------------------------------------------------------------------------------------
def write_fashion(folder: Path) -> None:
    """Small files in the format of Fashion-MNIST."""
    draw = np.random.default_rng(0)
    for name, count in zip(FILES, (80, 80, 20, 20), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        values = draw.integers(256, size=shape) if "images" in name else np.arange(count) % 10
        write_gz(folder / "fashion-mnist" / f"{name}.gz", idx_bytes(values.astype(np.uint8)))


def write_cifar(folder: Path) -> None:
    """Small files in the format of CIFAR-10."""
    draw = np.random.default_rng(0)
    (folder / CIFAR10.folder).mkdir(parents=True)
    for name in (*CIFAR10.train, CIFAR10.test):
        labels = (np.arange(20, dtype=np.uint8) % 10)[:, None]
        records = np.concatenate([labels, draw.integers(256, size=(20, 3072), dtype=np.uint8)], 1)
        (folder / CIFAR10.folder / name).write_bytes(records.tobytes())


PUBLIC: dict[str, Any] = {
    "settings": {"clients": 2, "rounds": 3, "epochs": 1, "batch": 16, "partition": "iid", "model": "mlp:8"},
    "columns": {
        "FMNIST": {"data": "fashion-mnist"},
        "Cifar10": {"data": "cifar10", "partition": "longtail:10+iid"},
        "FEMNIST": {"data": "femnist", "partition": "user"},  # LEAF makes its files, so nothing is ever downloaded
        "Photos": {"data": "list:photos/train.txt?size=32"},
    },
    "scores": {"Few": "few", "All": "generic.final"},
    "rows": [{"name": "FedAvg", "method": "fedavg", "paper": [50] * 8}],
}


def test_columns_whose_data_are_here_run_and_the_others_say_what_is_missing(tmp_path: Path) -> None:
    table = write_table(tmp_path, **PUBLIC)
    write_fashion(tmp_path / "data")
    write_cifar(tmp_path / "data")
    out = fedframe("paper", table, "--data-dir", "data", "--out", "out", folder=tmp_path)
    assert "Left out, FEMNIST: " in out
    assert str(tmp_path / "data" / "femnist") in out
    assert f"Left out, Photos: data 'list:{tmp_path / 'data' / 'photos' / 'train.txt'}?size=32'" in out
    numbers = {(entry["column"], entry["score"]): entry for entry in read_json(tmp_path, "tiny.json")["numbers"]}
    assert numbers["FMNIST", "All"]["ours"] is not None
    assert numbers["FMNIST", "Few"]["remark"] == "not measured"  # all classes are alike
    assert numbers["Cifar10", "Few"]["ours"] is not None
    assert [numbers[name, "All"]["remark"] for name in ("FEMNIST", "Photos")] == ["not run", "not run"]
    assert "not run (50.0)" in (tmp_path / "out" / "tiny.md").read_text()


def test_without_any_data_one_sentence_says_what_belongs_where(tmp_path: Path) -> None:
    table = write_table(tmp_path, **PUBLIC)
    said = fedframe("paper", table, "--columns", "FEMNIST", "--data-dir", "data", folder=tmp_path, ok=False)
    assert "No data of tiny are available" in said
    assert "femnist" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fedrane"], "There is no table or figure 'fedrane'; did you mean"),
        (["fedrane-1", "--scale", "2"], "scale = 2: it must be above 0 and at most 1"),
        (["fedrane-1", "--rows", "fedavgg"], "There is no row 'fedavgg'; did you mean 'FedAvg'?"),
        (["fedrane-1", "--set", "gmv.alpha=1"], "no chosen row of fedrane-1 has a part 'gmv'"),
        (["fedrane-1", "--set", "lra.nothing=1"], "The part 'lra' has no setting 'nothing'"),
        (["fedrane-1", "--device", "tpu"], "device = 'tpu' is not available on this machine; use cpu."),
        (["mine.yaml"], "There is no file mine.yaml"),
    ],
)
def test_mistake_is_answered_in_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    said = fedframe("paper", *arguments, folder=tmp_path, ok=False)
    assert sentence in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_tables_can_be_filled_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path)
    choice = Choice(rows=["FedAvg"], columns=["IID"], out=tmp_path / "out")
    result = fill(str(tmp_path / "tiny.yaml"), choice, progress=False)
    assert result.entry("FedAvg", "IID", "General").ours.mean is not None
    assert capsys.readouterr().out == ""


def test_tuned_table_has_the_rates_that_held_out_data_chose_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    table = write_table(
        tmp_path,
        rates=[1e-6, 0.1, 1e30],
        columns={"IID": {"partition": "iid"}},
        rows=[{**row, "paper": row["paper"][:2]} for row in TABLE["rows"]],
    )
    arguments = ("paper", table, "--tune", "--scale", 0.25, "--out", "out")
    out = fedframe(*arguments, folder=tmp_path)
    content = read_json(tmp_path, "tiny-tuned-scale-0.25.json")
    assert {(each["row"], each["lr"]) for each in content["tuning"]} == {("FedAvg", 0.1), ("FedProx", 0.1)}
    trials = {trial["lr"]: trial for trial in content["tuning"][0]["trials"]}
    assert trials[1e30] == {"lr": 1e30, "mean": None, "states": ["diverged"]}
    assert trials[0.1]["mean"] > trials[1e-6]["mean"]
    assert {(cell["row"], cell["lr"]) for cell in content["cells"]} == {
        ("FedAvg", 0.1),
        ("FedProx", 0.1),
        ("Explodes", 1e30),
    }
    assert "with one seed (generic, mean of the last five" in out
    assert "FedAvg: 0.1; FedProx: 0.1." in out
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").rglob("summary.json")}
    victim = next(path for path in times if read_config(path.parent / "config.yaml").get("validate_share"))
    shutil.rmtree(victim.parent)  # as if it had never been run
    fedframe(*arguments, folder=tmp_path)
    assert read_json(tmp_path, "tiny-tuned-scale-0.25.json") == content
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").rglob("summary.json")}
    assert {path for path in times if times[path] != again[path]} == {victim}


def test_dry_run_says_what_tuning_would_take(tmp_path: Path) -> None:
    out = fedframe("paper", write_table(tmp_path), "--tune", "--dry-run", folder=tmp_path)
    assert "Tuning first: lr from 0.01, 0.03, 0.1, 0.3, 16 runs on held-out training data" in out
