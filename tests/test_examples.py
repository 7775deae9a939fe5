"""The examples run as they are, are short, and say what they show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hold import DEADLINE
from tests.test_docs import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "compare_methods.py": "points from FedAvg",
    "own_method.py": "runs/",
    "own_net_and_data.py": "hospital 0's own",
    "late_client.py": "north's own",
    "join_and_forget.py": "client 7 is out",
    "three_sites.py": "north's own model",
}
SHORTENED = {
    "compare_methods.py",
    "own_method.py",
    "own_net_and_data.py",
    "late_client.py",
    "three_sites.py",
}  # take a number of rounds


def test_every_example_is_listed_short_and_checked() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    assert {path.name for path in EXAMPLES} == {*SAYS}
    for path in EXAMPLES:
        assert f"({path.name})" in listed
        assert len(path.read_text().splitlines()) < 60, path.name
        assert f"python examples/{path.name}" in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(path), *(["2"] if path.name in SHORTENED else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS[path.name] in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=int(DEADLINE), kernel_name="python3", resources=resources).execute()
    assert all(not cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells), "outputs are not kept"
