"""Nodes whose data are a MedMNIST file, a data set of the hub on disk and DICOM series, in one federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedframe.federation import start
from fedframe.federation.create import form_from_description
from fedframe.runs.predictor import Predictor
from fedframe.util.files import read_json
from tests.data.test_dicom import write as write_slice
from tests.federation.clinic import NAMES, make_clinic
from tests.federation.surveyed import Surveyed

CLASSES = ("0", "1")
SPLITS = {"train": 40, "validation": 10, "test": 20}


def pictures(seed: int, count: int) -> tuple[Any, Any]:
    """Images of 8x8 of two classes: bright above, or bright below."""
    y = np.arange(count) % 2
    x = np.random.default_rng(seed).integers(0, 90, (count, 8, 8), dtype=np.uint8)
    for row, label in enumerate(y):
        x[row, 4 * label : 4 * label + 4] += 120
    return x, y


def medmnist(path: Path) -> str:
    """A file with MedMNIST's names."""
    arrays: dict[str, Any] = {}
    for seed, (split, count) in enumerate(SPLITS.items()):
        x, y = pictures(seed, count)
        short = "val" if split == "validation" else split
        arrays |= {f"{short}_images": x, f"{short}_labels": y[:, None].astype(np.uint8)}
    np.savez(path.with_suffix(".npz"), **arrays)
    return f"npz:{path.with_suffix('.npz')}"


def hub(path: Path) -> str:
    """The same splits of other images, as `save_to_disk` writes them; classes are in another order."""
    datasets = pytest.importorskip("datasets", reason="needs the extra 'datasets': pip install 'fedframe[datasets]'")
    from PIL import Image

    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=[*CLASSES[::-1]])})
    found = {}
    for seed, (split, count) in enumerate(SPLITS.items()):
        x, y = pictures(10 + seed, count)
        columns = {"image": [Image.fromarray(each) for each in x], "label": (1 - y).tolist()}
        found[split] = datasets.Dataset.from_dict(columns, features=kinds)
    datasets.DatasetDict(found).save_to_disk(path)
    return f"hf:{path}"


def dicom(path: Path) -> str:
    """A slice per patient, in a folder per class."""
    pytest.importorskip("pydicom", reason="needs the extra 'dicom': pip install 'fedframe[dicom]'")
    for row, (x, y) in enumerate(zip(*pictures(20, 40), strict=True)):
        write_slice(
            path / CLASSES[y] / f"{row}.dcm", x, PatientID=f"p{row}", SeriesInstanceUID=f"1.2.{row + 1}",
            WindowCenter=128, WindowWidth=256,
        )  # fmt: skip
    return f"dicom:{path}"


WRITERS = dict(zip(NAMES, (medmnist, hub, dicom), strict=True))


def check_run(folder: Path) -> None:
    """All three learned, and were tested on test data of their own."""
    summary = read_json(folder / "clinic/runs/1/summary.json")
    assert summary["scores"]["client"]["final"] > 0.9
    counts = {row["name"]: row for row in read_json(folder / "clinic/runs/1/federation.json")["members"]}
    assert [counts[name]["train"] for name in NAMES[:2]] == [SPLITS["train"]] * 2  # validation is set aside
    assert 28 <= counts["west"]["train"] < 40
    x, y = pictures(30, 20)
    model = Predictor.load(next((folder / "south-node/runs").iterdir()))
    assert model.predict(torch.from_numpy(x)) == [CLASSES[label] for label in y]


@pytest.mark.parametrize("secure", [False, True])
def test_nodes_with_files_of_others_train_together(
    secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, transport = make_clinic(
        tmp_path, monkeypatch, form=form_from_description("0,1", "8x8x1", "0.4", "0.3"), rounds=4, lr=0.1, epochs=4,
        write=lambda path, number: WRITERS[path.stem](path.with_suffix("")), secure=secure,
    )  # fmt: skip
    said = "\n".join(transport.known["north"].member.check())  # type: ignore[attr-defined]
    assert "40 training and 20 test samples" in said
    assert "10 samples of the validation split are set aside" in said
    start.start(made, progress=False)
    check_run(tmp_path)


def test_a_survey_finds_that_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {name: write(tmp_path / name) for name, write in WRITERS.items()}
    clinic = Surveyed(tmp_path, data, monkeypatch, model="mlp:8", rounds=4, lr=0.1, epochs=4)
    form = clinic.survey().form
    assert (form.shape, form.classes) == ((8, 8, 1), CLASSES)
    pixels = np.concatenate([pictures(seed, 40)[0] for seed in (0, 10, 20)]).astype(np.float64)
    assert form.mean.item() == pytest.approx(pixels.mean(), rel=0.02)
    assert form.std.item() == pytest.approx(pixels.std(), rel=0.02)
    start.start(clinic.made, progress=False)
    check_run(tmp_path)
