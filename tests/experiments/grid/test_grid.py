"""Many runs: finished ones stay, killed ones go on, failed ones stop nobody, and cores and memory are respected."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedframe.errors import SettingError
from fedframe.experiments.grid import Cell, outcome_of, run_cells
from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.grid.display import GridDisplay
from fedframe.experiments.grid.resources import GUESS, Usage, free_memory, peak_memory, workers_for_next
from fedframe.experiments.grid.run import SequentialRunner
from fedframe.jobs.gather import gather
from fedframe.runs.folder import RunFolder
from tests.helpers import blobs, same_file
from tests.hold import DEADLINE, environment, wait_until

pytestmark = pytest.mark.slow  # trains many small runs

SMALL: dict[str, Any] = {"clients": 4, "rounds": 3, "epochs": 1, "model": "mlp:8", "partition": "iid", "batch": 64}
GB = 1 << 30


class Watcher(GridDisplay):
    """Keeps what a display is told, and how many cells were under way at once."""

    def __init__(self) -> None:
        self.ends: list[Outcome] = []
        self.most = 0
        self.names: list[str] = []

    def begin(self, cell: Cell) -> None:
        super().begin(cell)
        self.names.append(cell.name)
        self.most = max(self.most, len(self.shares))

    def end(self, outcome: Outcome) -> None:
        super().end(outcome)
        self.ends.append(outcome)


def cells_of(folder: Path, variants: Sequence[dict[str, Any]]) -> list[Cell]:
    """A cell per variant of the small run."""
    return [
        Cell(f"cell {i}", gather({**SMALL, **variant}, None), folder / str(i)) for i, variant in enumerate(variants)
    ]


def run(cells: Sequence[Cell], cores: int = 2, **more: Any) -> tuple[dict[Path, Outcome], Watcher]:
    watcher = Watcher()
    return run_cells(cells, watcher, cores=cores, **more), watcher


def test_cells_run_side_by_side_and_finished_ones_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedframe.experiments.grid.run.free_memory", lambda: None)  # others may have taken it
    cells = cells_of(tmp_path, [{"seed": seed} for seed in range(4)])
    outcomes, watcher = run(cells)
    assert [outcomes[cell.folder].state for cell in cells] == ["finished"] * 4
    assert watcher.most == 2
    generic = [outcomes[cell.folder].summary["scores"]["generic"]["final"] for cell in cells]
    assert all(isinstance(value, float) for value in generic)
    before = [(cell.folder / "summary.json").stat().st_mtime_ns for cell in cells]
    outcomes, watcher = run(cells)
    assert watcher.names == []
    assert before == [(cell.folder / "summary.json").stat().st_mtime_ns for cell in cells]
    assert generic == [outcomes[cell.folder].summary["scores"]["generic"]["final"] for cell in cells]


def test_number_of_cores_does_not_change_a_bit(tmp_path: Path) -> None:
    one, many = cells_of(tmp_path / "one", [{}]), cells_of(tmp_path / "many", [{}])
    run(one, cores=1)
    run(many, cores=3)
    assert same_file(one[0].folder / "model.safetensors", many[0].folder / "model.safetensors")


def test_cells_of_one_folder_are_one_cell(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, [{}])
    twin = Cell("twin", cell.settings, cell.folder)
    outcomes, watcher = run([cell, twin])
    assert watcher.names == ["cell 0"]
    assert outcomes[twin.folder].state == "finished"


def test_cell_that_diverges_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, [{"lr": 1e30}, {}])
    outcomes, _ = run(cells)
    assert outcomes[cells[0].folder].state == "diverged"
    assert "smaller lr" in outcomes[cells[0].folder].reason
    assert outcomes[cells[1].folder].state == "finished"
    _, watcher = run(cells)
    assert watcher.names == []  # the same settings would diverge again


def test_cell_that_cannot_run_is_tried_again(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, [{"data": f"npz:{tmp_path / 'later.npz'}"}, {"clients": 5000}, {}])
    outcomes, _ = run(cells)
    assert [outcomes[cell.folder].state for cell in cells] == ["failed", "failed", "finished"]
    assert "later.npz" in outcomes[cells[0].folder].reason
    assert "clients" in outcomes[cells[1].folder].reason
    _, watcher = run(cells)
    assert watcher.names == ["cell 0", "cell 1"]


def test_killed_process_of_a_cell_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "import os, signal, torch\n"
        "class Deadly(torch.nn.Linear):\n"
        "    dim = 5\n"
        "    def __init__(self):\n"
        "        super().__init__(64, 5)\n"
        "    def forward(self, x):\n"
        "        if self.training:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().forward(x.flatten(1))\n"
    )
    cells = cells_of(tmp_path, [{"model": f"{net}:Deadly"}, {}])
    outcomes, _ = run(cells)
    assert outcomes[cells[0].folder].state == "failed"
    assert "SIGKILL: perhaps out of memory" in outcomes[cells[0].folder].reason
    assert outcomes[cells[1].folder].state == "finished"


def test_folder_of_another_run_is_refused_by_the_setting_that_differs(tmp_path: Path) -> None:
    run(cells_of(tmp_path, [{}]))
    with pytest.raises(SettingError, match=r"holds a run with rounds = 3, not 4; choose another --out"):
        run(cells_of(tmp_path, [{"rounds": 4}]))
    run(cells_of(tmp_path, [{"workers": 2, "data_dir": "elsewhere"}]))  # where it runs does not matter


def test_data_from_python_run_as_cells(tmp_path: Path) -> None:
    settings = gather({**SMALL, "data": "python", "partition": "user", "clients": None}, None)
    cell = Cell("own", settings, tmp_path / "own", data=blobs())
    outcomes, _ = run([cell])
    assert outcomes[cell.folder].state == "finished"


def test_what_only_an_unfinished_run_needs_is_dropped_unless_it_is_wanted(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, [{"method": "scaffold"}])
    run(cells)
    names = {path.name for path in cells[0].folder.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "summary.json", "model.safetensors"} <= names
    assert not {"checkpoint.safetensors", "clients"} & names
    kept = cells_of(tmp_path / "kept", [{"method": "scaffold"}])
    run(kept, keep_state=True)
    assert {"checkpoint.safetensors", "clients"} <= {path.name for path in kept[0].folder.iterdir()}


def test_cells_can_run_in_this_process_too(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, [{"lr": 1e30}, {}])
    watcher = Watcher()
    with watcher:
        states = [outcome.state for outcome in SequentialRunner(False).run(cells, watcher)]
    assert states == ["diverged", "finished"]
    forked = cells_of(tmp_path / "forked", [{}])
    run(forked)
    assert same_file(cells[1].folder / "model.safetensors", forked[0].folder / "model.safetensors")


SCRIPT = """
import sys
from pathlib import Path
import fedframe.experiments.grid.run as grid
from fedframe.jobs.gather import gather
from fedframe.experiments.grid import Cell, choose_grid_display, run_cells
grid.free_memory = lambda: None  # other programs may have taken it
given = dict(clients=6, rounds=20, momentum=0.9, lr=0.02, keep_optimizer=True, personal=False, eval_every=5)
cells = [Cell(f"seed {s}", gather({**given, "seed": s}, None), Path(sys.argv[1]) / str(s)) for s in range(3)]
run_cells(cells, choose_grid_display(False), cores=2)
"""  # no main guard: users' scripts often have none


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, and beside it the folder `whole` that it leaves when nobody stops it."""
    path = tmp_path_factory.mktemp("grid") / "script.py"
    path.write_text(SCRIPT)
    subprocess.run([sys.executable, path, path.parent / "whole"], check=True)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_stopped_cells_leave_no_process_behind_and_go_on_to_the_same_bits(
    tmp_path: Path, script: Path, sent: signal.Signals
) -> None:
    held = tmp_path / "held.py"
    held.write_text(f"from tests.hold import hold\nhold(rounds=3)\n{SCRIPT}")
    process = subprocess.Popen(
        [sys.executable, held, tmp_path / "cut"], stderr=subprocess.PIPE, text=True, env=environment()
    )
    wait_until(lambda: all(len(RunFolder(tmp_path / "cut" / seed).metrics()) >= 3 for seed in "01"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(process.pid, sent)
    _, said = process.communicate(timeout=DEADLINE)
    assert not (tmp_path / "cut" / "0" / "summary.json").exists()
    wait_until(lambda: not any(alive(int(child)) for child in children))
    if sent == signal.SIGINT:
        assert "0 of 3 cells are finished and kept; the same command goes on" in said
    subprocess.run([sys.executable, script, tmp_path / "cut"], check=True)
    for seed in "012":
        cut, whole = tmp_path / "cut" / seed, script.parent / "whole" / seed
        assert same_file(cut / "model.safetensors", whole / "model.safetensors")
        scores = [json.loads((folder / "summary.json").read_text())["scores"] for folder in (cut, whole)]
        assert scores[0] == scores[1]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- cores and memory --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("cores", "cells"), [(1, 5), (2, 5), (8, 3), (64, 10), (4, 4), (3, 2)])
def test_all_cores_work_and_never_more_processes_than_cores(cores: int, cells: int) -> None:
    running: list[Usage] = []
    waiting = cells
    while workers := workers_for_next(cores, running, waiting, 0, None):
        running.append(Usage(workers))
        waiting -= 1
    assert sum(usage.cores for usage in running) == cores
    assert len(running) == min(cores, cells)


def test_cell_waits_for_memory_and_one_always_runs() -> None:
    assert workers_for_next(4, [], 4, 0, 0) == 1  # alone it may try
    assert workers_for_next(4, [Usage(1)], 4, 0, 2 * GUESS) == 0
    assert workers_for_next(4, [Usage(1)], 4, 0, 3 * GUESS) == 1
    measured = Usage(1, 1 * GB)
    assert workers_for_next(4, [measured], 4, 1 * GB, 2 * GB) == 1
    assert workers_for_next(4, [measured], 4, 1 * GB, 1 * GB) == 0
    just_started = Usage(1)  # what it will take is not taken from the free memory yet
    assert workers_for_next(4, [measured, just_started], 4, 1 * GB, 2 * GB) == 0


def test_memory_is_measured_where_the_system_tells() -> None:
    assert free_memory() > 0
    assert peak_memory() > 50 << 20


def test_outcome_of_a_new_cell_is_waiting(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, [{}])
    assert outcome_of(cell).state == "waiting"
    assert outcome_of(cell).summary == {}


def test_rate_by_classes_is_the_same_run_when_the_run_has_made_one_rate_of_it(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, [{"method": "spherefed"}])
    assert cell.settings.lr_per_class is not None
    resolved = cell.settings.model_copy(update={"lr": 10 * cell.settings.lr_per_class, "lr_per_class": None})
    RunFolder(cell.folder).write_settings(resolved)
    assert outcome_of(cell).state == "waiting"
    RunFolder(cell.folder).write_settings(resolved.model_copy(update={"batch": 7}))
    with pytest.raises(SettingError, match="holds a run with batch = 7"):
        outcome_of(cell)
