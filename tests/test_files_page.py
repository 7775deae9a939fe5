"""docs/reference/files.md names every file of a run and every key in it, those of a kit and those of an agreement."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import yaml

import fedframe
from fedframe.data.spec import DataSchema
from fedframe.federation.agreement import Agreement
from fedframe.federation.kit import FILES
from fedframe.settings import Settings
from fedframe.util.files import read_tensors
from tests.test_docs import ROOT

TEXT = (ROOT / "docs" / "reference" / "files.md").read_text()
NAMED = {name for code in re.findall(r"`([^`\n]+)`", TEXT) for name in re.split(r"[\s,=]+", code)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("files") / "run"
    fedframe.run("fedavg", rounds=2, clients=3, workers=1, measure="drift", out=out, progress=False)
    return out


def keys_of_line(path: Path) -> set[str]:
    return {key for line in path.read_text().splitlines() for key in json.loads(line)}


def test_every_file_of_a_run_is_named(run: Path) -> None:
    found = {path.name for path in run.iterdir() if path.is_file()}
    assert len(found) > 6
    assert not found - NAMED


def test_every_key_of_a_round_is_named(run: Path) -> None:
    drift = {"drift_norm", "step_norm", "classifier_cosine", "classifier_norm_difference"}  # docs/measures.md has these
    assert not keys_of_line(run / "metrics.jsonl") - NAMED - {'"crc"', "crc"} - drift
    assert not keys_of_line(run / "drift.jsonl") - NAMED - {"crc", "round"}


def test_every_key_of_the_summary_and_of_the_table_of_clients_is_named(run: Path) -> None:
    ends = ("_low", "_high")
    for name in ("summary.json", "client_scores.json"):
        keys = {key for key in json.loads((run / name).read_text()) if not key.endswith(ends)}
        assert not keys - NAMED - {"checksum"}


def test_every_note_of_a_model_is_named(run: Path) -> None:
    tensors, notes = read_tensors(run / "model.safetensors")
    assert not set(notes) - NAMED
    assert {name.split("/")[0] for name in tensors} == {"model", "input"}


def test_every_key_of_an_agreement_and_every_file_of_a_kit_is_named() -> None:
    form = DataSchema(("a", "b"), (2,), None, torch.zeros(1), torch.ones(1))
    made = Agreement("clinic", "fl.example.org", 8443, ("north", "south"), form, Settings(), version=2, surveyed=5)
    values = yaml.safe_load(made.text())
    assert not {*values, *values["data"]} - NAMED
    assert not set(FILES) - NAMED
