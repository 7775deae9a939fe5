"""The command line as a person uses it: real processes, real output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import blobs
from tests.hold import DEADLINE, wait_until

pytestmark = pytest.mark.slow

PROGRAM = Path(sys.executable).with_name("fedframe")


def fedframe(*arguments: object, folder: Path, ok: bool = True) -> str:
    """Run a command in a folder; returns what it printed."""
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout if ok else done.stderr


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the default job, shortened."""
    folder = tmp_path_factory.mktemp("cli")
    out = fedframe("run", "fedavg", "--rounds", 3, "--out", "here", "--set", "fine_tune.epochs=1", folder=folder)
    assert "round 3/3" in out
    assert "accuracy of the shared model on the global test set" in out
    assert "Everything is in here" in out
    assert "\x1b" not in out  # plain lines when the output is no terminal
    return folder


def test_help_and_version_do_not_load_torch() -> None:
    code = "import sys, fedframe.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert "fedframe 0." in subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    module = [sys.executable, "-m", "fedframe", "--version"]
    assert "fedframe 0." in subprocess.run(module, capture_output=True, text=True, check=True).stdout


def test_finished_run_says_so_when_resumed(run_folder: Path) -> None:
    assert "is finished" in fedframe("resume", "here", folder=run_folder)


def test_same_folder_is_refused(run_folder: Path) -> None:
    assert "already holds a run" in fedframe("run", "fedavg", "--out", "here", folder=run_folder, ok=False)


def test_predict_prints_a_line_per_input_for_shared_and_personal_models(run_folder: Path) -> None:
    np.savez(run_folder / "new.npz", x=np.random.default_rng(0).integers(0, 17, (5, 8, 8), dtype=np.uint8))
    shared = fedframe("predict", "here", "new.npz", "--top", 2, folder=run_folder).splitlines()
    own = fedframe("predict", "here", "new.npz", "--top", 2, "--client", 3, folder=run_folder).splitlines()
    assert len(shared) == len(own) == 5
    name, best, first, other, second = shared[0].split("\t")
    assert name == "0"
    assert best != other
    assert 1 >= float(first) >= float(second) >= 0
    assert shared != own
    for absent in (99, -1):
        text = fedframe("predict", "here", "new.npz", "--client", absent, folder=run_folder, ok=False)
        assert f"There is no client {absent!r}" in text.replace("'", "")
        assert "0 to 19." in text
    np.savez(run_folder / "wrong.npz", x=np.zeros((2, 9, 9)))
    assert "but the model takes (8, 8, 1)" in fedframe("predict", "here", "wrong.npz", folder=run_folder, ok=False)


def test_clients_go_by_their_names_from_any_folder(tmp_path: Path) -> None:
    data = blobs(clients=3)
    data["user_train"] = np.array(["north", "south", "west"])[data["user_train"]]
    np.savez(tmp_path / "sites.npz", **data)
    np.savez(tmp_path / "new.npz", x=data["x_test"][:4])
    fedframe("run", "--data", "npz:sites.npz", "--rounds", 2, "--model", "mlp:8", "--out", "run", folder=tmp_path)
    (tmp_path / "elsewhere").mkdir()
    south = fedframe("predict", "../run", "../new.npz", "--client", "south", folder=tmp_path / "elsewhere")
    assert south == fedframe("predict", "run", "new.npz", "--client", 1, folder=tmp_path)
    said = fedframe("predict", "run", "new.npz", "--client", "sout", folder=tmp_path, ok=False)
    assert "did you mean 'south'" in said
    (tmp_path / "run" / "summary.json").unlink()
    fedframe("resume", "../run", folder=tmp_path / "elsewhere")
    assert "write npz:sites.npz" in fedframe("run", "--data", "sites.npz", folder=tmp_path, ok=False)


def test_runs_are_told_apart_by_method_or_by_folder(run_folder: Path) -> None:
    small = ["--rounds", 1, "--clients", 3, "--no-personal", "--workers", 1]
    for place, method in (("a/0", "fedavg"), ("b/0", "fedprox"), ("b/1", "fedprox")):
        fedframe("run", method, *small, "--out", f"told/{place}", folder=run_folder)
    fedframe("plot", "told/a/0", "told/b/0", "--out", "m.svg", folder=run_folder)
    assert all(f">{name} " in (run_folder / "m.svg").read_text() for name in ("fedavg", "fedprox"))
    fedframe("plot", "told/a/0", "told/b/0", "told/b/1", "--out", "f.svg", folder=run_folder)
    assert all(f">told/{name} " in (run_folder / "f.svg").read_text() for name in ("a/0", "b/0", "b/1"))


def test_plot_draws_a_picture(run_folder: Path) -> None:
    fedframe("plot", "here", "--out", "p.svg", folder=run_folder)
    assert ET.parse(run_folder / "p.svg").getroot().tag.endswith("svg")


def test_data_prints_a_table_and_saves_a_picture(tmp_path: Path) -> None:
    out = fedframe("data", "digits", "--partition", "classes:2", "--clients", 10, folder=tmp_path)
    assert "1438 training and 359 test samples" in out
    assert ET.parse(tmp_path / "partition-digits.svg").getroot().tag.endswith("svg")


def test_list_and_show_name_what_there_is(tmp_path: Path) -> None:
    out = fedframe("list", folder=tmp_path)
    for name in ("fedavg", "digits", "dirichlet", "resnet18", "fine_tune"):
        assert name in out
    shown = fedframe("show", "fedavg", folder=tmp_path)
    assert "McMahan" in shown
    assert "fine_tune.epochs=5" in shown
    assert "fedframe/methods/parts/fine_tune.py" in shown
    assert "fine_tune.epochs=0" in fedframe("show", "ditto", folder=tmp_path)  # the method, not the part of its name
    assert "analytic.map=fixed" in fedframe("show", "analytic", folder=tmp_path)  # what a new run names
    assert "linear" not in fedframe("show", "gne", folder=tmp_path)  # a part that is no method by itself


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "fedavh"], "There is no method 'fedavh'; did you mean 'fedavg'?"),
        (["run", "fedavg", "--rounds", "none"], "rounds = 'none'"),
        (["run", "fedavg", "--round", "3"], "--rounds"),
        (["run", "fedavg", "--set", "epochs=3"], "--set fine_tune.epochs=3"),
        (["run", "fedavg", "--set", "fine_tune="], "set = {'fine_tune': None} cannot be read"),
        (["run", "fedavg", "--device", "mps:9"], "device = 'mps:9' is not available on this machine"),
        (["run", "--config", "no.yaml"], "There is no config file no.yaml"),
        (["show", "nothing_like_it"], "choose one of"),
        (["resume", "nowhere"], "nowhere is not a run folder"),
        (["predict", "nowhere", "x.npz"], "nowhere is not a run folder"),
        (["plot", "nowhere", "--out", "x.jpg"], "name it x.svg"),
    ],
)
def test_mistake_is_answered_in_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    said = fedframe(*arguments, folder=tmp_path, ok=False)
    assert sentence in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


BROKEN = """
from dataclasses import dataclass
from typing import ClassVar

from fedframe import Part


@dataclass(frozen=True)
class Broken(Part):
    name: ClassVar[str] = "broken"

    def after_merge(self, server, clients):
        server.figures["broken/one"] = 1 / 0
"""


def test_error_in_ones_own_part_is_one_sentence_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    line = 1 + BROKEN.splitlines().index('        server.figures["broken/one"] = 1 / 0')
    asked = ["run", "mine.py:Broken", "--rounds", 2, "--clients", 3, "--workers", 1, "--quiet", "--out"]
    said = fedframe(*asked, "first", folder=tmp_path, ok=False)
    for piece in (str(tmp_path / "mine.py"), f"line {line}", "after_merge", "ZeroDivisionError: division by zero"):
        assert piece in said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 2
    assert said.endswith("No round is finished yet; fix that, then go on with: fedframe resume first --changed-code\n")
    assert "Traceback" in (tmp_path / "first" / "log.txt").read_text()
    assert "Traceback" in fedframe("--traceback", *asked, "second", folder=tmp_path, ok=False)
    assert "Traceback" in fedframe(*asked, "third", "--traceback", folder=tmp_path, ok=False)
    (tmp_path / "mine.py").write_text(BROKEN.replace("1 / 0", "1.0"))
    fedframe("resume", "first", "--changed-code", "--quiet", folder=tmp_path)  # the advice works
    assert (tmp_path / "first" / "summary.json").exists()


def test_changed_file_is_refused_until_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN.replace("1 / 0", "1.0"))
    asked = ["run", "mine.py:Broken", "--rounds", 1, "--clients", 3, "--workers", 1, "--quiet", "--out", "run"]
    fedframe(*asked, folder=tmp_path)
    (tmp_path / "run" / "summary.json").unlink()  # as if it had been killed before the end
    with (tmp_path / "mine.py").open("a") as file:
        file.write("# changed\n")
    assert "mine.py changed since run was begun" in fedframe("resume", "run", folder=tmp_path, ok=False)
    fedframe("resume", "run", "--changed-code", "--quiet", folder=tmp_path)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_with_a_sentence_and_the_run_goes_on(tmp_path: Path, sent: signal.Signals) -> None:
    command = [str(PROGRAM), "run", "fedavg", "--rounds", "100000", "--out", "cut", "--workers", "2"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes)
    wait_until(lambda: (tmp_path / "cut" / "metrics.jsonl").exists())
    os.killpg(process.pid, sent)  # as a terminal or a job scheduler does: to all processes of the run
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "fedframe resume cut" in said
    assert "Traceback" not in said
