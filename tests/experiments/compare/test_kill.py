"""`fedframe compare` as a person uses it: killed in the middle and started again, it ends with the same numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hold import PROGRAM, environment, wait_until, wait_until_free

pytestmark = pytest.mark.slow

TIMES = ("seconds", "cpu_seconds", "seconds_to")
# Four methods by three seeds on digits; of the first method a setting is chosen before.
ARGUMENTS = [
    "compare", "fedavg?lr=[0.05,0.2]", "fedprox", "fedetf", "fedrane", "--data", "digits", "--tuning-seeds", "1",
    "--seeds", "3", "--rounds", "5", "--clients", "4", "--epochs", "1", "--model", "mlp:16", "--target", "0.5",
    "--cores", "2", "--out",
]  # fmt: skip
TUNING, ALL = 2, 14
CODE = "from fedframe.cli import main; main()"


def command(out: Path) -> list[str]:
    return [sys.executable, "-c", CODE, *ARGUMENTS, out.name]


def numbers(out: Path) -> dict[str, Any]:
    """comparison.json without what is a time."""
    content: dict[str, Any] = json.loads((out / "comparison.json").read_text())
    content.pop("checksum")  # of all that is written, times too
    content.pop("command")
    for method in content["methods"]:
        method["scores"] = {name: value for name, value in method["scores"].items() if not name.startswith(TIMES)}
    content["definitions"] = {}
    return content


def finished(out: Path) -> int:
    return len(list(out.rglob("summary.json")))


def test_killed_comparison_goes_on_cell_by_cell_to_the_same_numbers(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    said = subprocess.run(command(whole), cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert f"Tuning: {TUNING} runs on validation data" in said
    assert "## Difference to fedavg" in said
    assert said.count("runs, 0 of them finished before") == 2

    (tmp_path / "there").mkdir()
    cut = tmp_path / "there" / "cut"
    held = [sys.executable, "-c", PROGRAM.format(rounds=1, finished=TUNING + 4), *command(cut)[3:]]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(held, cwd=cut.parent, env=environment(), **quiet)
    wait_until(lambda: finished(cut) >= TUNING + 4 or process.poll() is not None)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until_free(cut)
    done = {path: path.stat().st_mtime_ns for path in cut.rglob("summary.json")}
    assert TUNING + 4 <= len(done) < ALL
    assert not (cut / "comparison.json").exists()

    subprocess.run(command(cut), cwd=cut.parent, check=True, capture_output=True)
    assert finished(cut) == ALL
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())  # what was finished is not run again
    assert numbers(cut) == numbers(whole)
    assert (cut / "comparison.md").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fedavh"], "did you mean 'fedavg'"),
        ([], "nothing to compare"),
        (["fedavg", "--sweep", "eval_every=1,2"], "eval_every is the same for all methods"),
        (["fedavg", "--sweep", "alpha=0.1,-1"], "partition 'dirichlet:-1' needs a number above 0"),
        (["fedavg", "--baseline", "x"], "baseline = 'x' is not compared"),
    ],
)
def test_mistake_is_answered_in_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, "compare", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
