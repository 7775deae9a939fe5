"""Models of a finished run are not loaded with code that has changed since, unless that is meant."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedframe
from fedframe.analysis import examine
from fedframe.errors import DataError
from fedframe.report.figures import draw
from fedframe.report.page.build import write_page
from fedframe.util.files import read_json
from tests.helpers import blobs
from tests.own_code import HELPER, NET, SMALL, write_own

EDITED = NET.replace("ReLU", "Tanh")  # the same weights fit, and mean something else
X = blobs()["x_test"][:5]


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run whose method, net and data are in files of the user's own."""
    monkeypatch.chdir(write_own(tmp_path))
    fedframe.run("mine.py:Decay", data="npz:mine.npz", model="net.py:Net", out="run", **SMALL)
    return Path("run")


@pytest.mark.slow
def test_edited_net_is_refused_by_name_wherever_its_weights_would_be_loaded(run: Path, tmp_path: Path) -> None:
    result = fedframe.resume(run, progress=False)
    before = fedframe.Predictor.load(run).probabilities(X)
    (tmp_path / "net.py").write_text(EDITED)
    sentence = "net.py changed since run was trained.*--changed-code"
    with pytest.raises(DataError, match=sentence):
        fedframe.Predictor.load(run)
    with pytest.raises(DataError, match=sentence):
        fedframe.personalise(run, (X, [0, 1, 2, 0, 1]), name="north", progress=False)
    with pytest.raises(DataError, match=sentence):
        examine(run)
    for use in (lambda: result.model, lambda: result.personal(0), result.report):
        with pytest.raises(DataError, match=sentence):
            use()
    assert not (run / "personal" / "joined").exists()
    assert not (run / "examination.json").exists()
    assert not torch.equal(fedframe.Predictor.load(run, changed_code=True).probabilities(X), before)
    north = fedframe.personalise(run, (X, [0, 1, 2, 0, 1]), name="north", changed_code=True, progress=False)
    assert len(north.model.predict(X)) == 5
    (tmp_path / "net.py").write_text(NET)
    assert torch.equal(fedframe.Predictor.load(run).probabilities(X), before)


@pytest.mark.slow
def test_edited_part_and_its_helper_are_refused_too(run: Path, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER.format(strength=3.0))
    with pytest.raises(DataError, match=r"helper\.py changed since run"):
        fedframe.Predictor.load(run)
    assert fedframe.resume(run, changed_code=True, progress=False).model.predict(X)


@pytest.mark.slow
def test_edited_data_concern_only_what_reads_them(run: Path) -> None:
    np.savez("mine.npz", **blobs(seed=3))
    assert fedframe.Predictor.load(run).predict(X)
    assert fedframe.personalise(run, (X, [0, 1, 2, 0, 1]), name="north", progress=False).model.predict(X)
    with pytest.raises(DataError, match=r"mine\.npz changed since run was trained"):
        examine(run)
    Path("mine.npz").unlink()
    assert fedframe.Predictor.load(run).predict(X)


@pytest.mark.slow
def test_page_goes_on_without_what_needs_the_models_and_says_why(run: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(EDITED)
    said: list[str] = []
    page = write_page([run], notify=said.append).read_text()
    assert any("net.py changed since run was trained" in text for text in said)
    assert "net.py changed since run was trained" in page
    assert not (run / "examination.json").exists()
    write_page([run], changed_code=True, notify=said.append)
    assert json.loads((run / "examination.json").read_text())["made_of"]["changed"][0][0].endswith("net.py")
    # What was found with the edited file is not taken for the run's own, neither now nor once the file is put back.
    assert "net.py changed since run was trained" in write_page([run], notify=said.append).read_text()
    (tmp_path / "net.py").write_text(NET)
    write_page([run], notify=said.append)
    assert "changed" not in json.loads((run / "examination.json").read_text())["made_of"]


@pytest.mark.slow
def test_examination_of_before_the_edit_still_counts(run: Path, tmp_path: Path) -> None:
    found = examine(run)
    (tmp_path / "net.py").write_text(EDITED)
    assert examine(run) == found
    said: list[str] = []
    draw([run], "confusion", notify=said.append)
    assert not said


@pytest.mark.slow
def test_objects_of_the_process_that_trained_are_taken_for_what_they_are() -> None:
    calls: list[int] = []

    class Net(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(torch.nn.Linear(5, 8), torch.nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)  # a value that the class uses, and that the training changes
            found: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return found

    net = Net()
    result = fedframe.run("fedavg", data=blobs(), model=net, out="object", **SMALL)
    assert result.model.predict(X)
    with pytest.raises(DataError, match="python:Net changed since object"):
        fedframe.Predictor.load("object", net=net)
    assert fedframe.Predictor.load("object", net=net, changed_code=True).predict(X)


@pytest.mark.slow
def test_same_code_in_another_folder_and_a_folder_without_a_record_are_no_change(run: Path, tmp_path: Path) -> None:
    record = read_json(run / "inputs.json")
    for file in record["files"]:
        file["path"] = f"/elsewhere{file['path']}"
    (run / "inputs.json").write_text(json.dumps(record))
    assert fedframe.Predictor.load(run).predict(X)
    (run / "inputs.json").unlink()
    (tmp_path / "net.py").write_text(EDITED)
    assert fedframe.Predictor.load(run, changed_code=True).predict(X)
