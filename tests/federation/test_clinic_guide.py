"""The guide for clinics, word for word: every command of docs/clinic.md, with real processes on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("PIL")

from fedframe.util.files import read_json
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG

pytestmark = pytest.mark.slow
GUIDE = Path(__file__).parents[2] / "docs" / "clinic.md"


def commands() -> str:
    """All commands of the page but the installation, as one script."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.S)
    assert blocks[0].startswith("pip install")
    return "\n".join(["set -e", *blocks[1:]])


def test_every_command_of_the_guide_does_what_it_says(tmp_path: Path) -> None:
    script = commands()
    assert script.count("--port 8443") == 2
    (port,) = free_ports(1)
    script = script.replace("--port 8443", f"--port {port}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (tmp_path / "said.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # nodes and servers of the page are its children, and end with it
        )
        try:
            code = process.wait(2 * LONG)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
    said = (tmp_path / "said.log").read_text()
    assert code == 0, said[-4000:]
    assert "refused, with the options that help" in said
    assert "--drop patient_id" in said
    plain = " ".join(said.split())  # sentences are folded where terminals are narrow
    assert re.search(r"% of this node's test samples are 'no sepsis': the majority class alone would score", plain)
    assert re.search(r"% of the test samples are 'no sepsis': .{,90} in accuracy. Scores of this run are AUROC", plain)
    assert "without Fedframe: True" in said
    predicted = [line.split("\t") for line in (tmp_path / "predicted.tsv").read_text().splitlines()]
    assert len(predicted) == 420
    assert {line[1] for line in predicted} == {"sepsis", "no sepsis"}
    assert re.search(r"^(no )?sepsis \{'no sepsis': [0-9.]+, 'sepsis': [0-9.]+\}$", said, re.M)
    summary = read_json(tmp_path / "sepsis/runs/1/summary.json")
    assert summary["scores"]["client"]["final"] > 0.8  # AUROC of data that are easy
    gains = read_json(tmp_path / "sepsis/runs/1/gain.json")["clients"]
    assert sorted(row["client"] for row in gains) == ["north", "south", "west"]
    assert all(row["alone"]["value"] > 0.5 for row in gains)
    board = (tmp_path / "sepsis/runs/1/report.html").read_text()
    assert "left the 3 sites in all" in board
    assert "By joining, " in board
    assert len([*tmp_path.glob("north-node/runs/*/report.html")]) == 1
    assert (tmp_path / "lesions/runs/1/report.html").exists()
    exported = {each.name for each in (tmp_path / "lesion-model").iterdir()}
    assert {"model.pt2", "use_model.py", "MODEL_CARD.md"} <= exported
