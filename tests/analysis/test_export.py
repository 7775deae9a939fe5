"""Exported models: the same predictions without Fedframe, checked before they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedframe
from fedframe.analysis import export as module
from fedframe.analysis.export import export
from fedframe.errors import DataError, RunError, SettingError
from tests.helpers import blobs, images

SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "workers": 1, "progress": False}
FORMATS = ["onnx", "torch", "torchscript"]
ALONE = """
import sys
sys.modules["fedframe"] = None  # whoever imports it fails
import numpy as np
sys.path.insert(0, {folder!r})
import use_model
names, p = use_model.predict(np.load({inputs!r}))
np.savez({out!r}, names=names, p=p)
"""


@pytest.fixture(scope="module")
def run_of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    data = images(28, 60)
    np.savez(folder / "data.npz", **data)
    fedframe.run(
        "fedetf", data=f"npz:{folder / 'data.npz'}", clients=2, partition="iid", model="resnet20",
        out=folder / "run", **{**SMALL, "rounds": 1},
    )  # fmt: skip
    return folder / "run"


def alone(folder: Path, inputs: np.ndarray[Any, Any]) -> tuple[list[str], Any]:
    """What the loader predicts in a Python that has no Fedframe."""
    np.save(folder / "inputs.npy", inputs)
    text = ALONE.format(folder=str(folder), inputs=str(folder / "inputs.npy"), out=str(folder / "out.npz"))
    subprocess.run([sys.executable, "-W", "ignore", "-c", text], check=True, cwd=folder, env={"OMP_NUM_THREADS": "1"})
    found = np.load(folder / "out.npz")
    return found["names"].tolist(), found["p"]


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_an_exported_image_model_predicts_the_same_without_fedframe(run_of_images: Path, format: str) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    made = export(run_of_images, format, out=run_of_images.parent / format)
    assert made.real
    assert made.samples > 10
    inputs = images(28, 7, seed=5)["x_train"]  # another number of images than the graph was made with
    predictor = fedframe.Predictor.load(run_of_images)
    names, p = alone(made.folder, inputs)
    assert names == predictor.predict(inputs)
    assert np.abs(p - predictor.probabilities(inputs).numpy()).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_a_clients_own_model_is_exported_with_its_card(tmp_path: Path, format: str) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    result = fedframe.run("fedavg", data=blobs(), model="mlp:8", out=tmp_path / "run", **SMALL)
    file = result.export(format, client=2)
    assert file.parent == tmp_path / "run" / "export-2"
    inputs = torch.as_tensor(blobs()["x_test"])
    found = module.readers[format](file)(inputs)
    own, shared = result.personal(2).probabilities(inputs), result.model.probabilities(inputs)
    assert torch.allclose(found, own, atol=1e-5)
    assert not torch.allclose(found, shared, atol=1e-3)
    card = (file.parent / "MODEL_CARD.md").read_text()
    for text in (
        "own model of client 2",
        "Licence:",
        "95 % interval",
        "By client",
        "By class",
        "Limits",
        "real samples",
    ):
        assert text in card, text


def test_the_loader_has_ten_lines_of_code() -> None:
    for text in module.USE.values():
        assert len([line for line in text.splitlines() if line.strip()]) <= 10


@pytest.mark.slow
def test_a_file_that_predicts_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fedframe.run("fedavg", data=blobs(), model="mlp:8", out=tmp_path / "run", **SMALL)
    monkeypatch.setitem(module.readers, "torchscript", lambda path: lambda inputs: torch.full((len(inputs), 3), 1 / 3))
    with pytest.raises(RunError, match="predicts differently"):
        result.export("torchscript", out=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_where_the_data_are_gone_the_card_says_so(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **blobs())
    fedframe.run("fedavg", data=f"npz:{tmp_path / 'data.npz'}", model="mlp:8", out=tmp_path / "run", **SMALL)
    (tmp_path / "data.npz").unlink()
    made = export(tmp_path / "run", "torchscript")
    assert not made.real
    assert "the data are not available here" in (made.folder / "MODEL_CARD.md").read_text()


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="onnx"):
        export(tmp_path, "onx")


@pytest.mark.slow
def test_without_onnx_the_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fedframe.run("fedavg", data=blobs(), model="mlp:8", out=tmp_path / "run", **SMALL)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DataError, match=r"fedframe\[export\]"):
        result.export("onnx")


# -- tables ------------------------------------------------------------------------------------------------------------
def table(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    lines = ["age,kind,code,label"]
    for _ in range(120):
        sick = draw.random() < 0.5
        kind = "b" if sick == (draw.random() < 0.8) else "a"
        lines.append(
            f"{'' if draw.random() < 0.1 else round(40 + 20 * sick + draw.normal(), 1)},{kind},"
            f"{draw.choice(['1', '2', 'x'])},{'sick' if sick else 'well'}"
        )
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder / "t.csv"


@pytest.mark.slow
def test_a_data_frame_predicts_what_the_command_line_predicts(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = table(tmp_path)
    result = fedframe.run("fedavg", data=f"csv:{path}", clients=2, partition="iid", out=tmp_path / "run", **SMALL)
    from fedframe.runs.predictor import predict_file

    lines = [line.split("\t") for line in predict_file(tmp_path / "run", path, None, 1)]
    frame = pandas.read_csv(path, dtype={"code": "string"}).sample(frac=1, random_state=1)
    predictor = fedframe.Predictor.load(tmp_path / "run")
    assert predictor.predict(frame) == [lines[i][1] for i in frame.index]
    found = predictor.predict_table(frame)
    assert list(found.columns) == ["prediction", "sick", "well"]
    assert list(found.index) == list(frame.index)
    assert np.allclose(found[["sick", "well"]].to_numpy(), predictor.probabilities(frame).numpy())
    assert result.model.predict(frame[["kind", "code", "age"]]) == predictor.predict(frame)  # in any order
    with pytest.raises(DataError, match="lacks the column 'age'"):
        predictor.predict(frame[["kind", "code"]])


@pytest.mark.slow
def test_missing_values_of_a_data_frame_are_those_of_a_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = table(tmp_path)
    fedframe.run("fedavg", data=f"csv:{path}", clients=2, partition="iid", out=tmp_path / "run", **SMALL)
    predictor = fedframe.Predictor.load(tmp_path / "run")
    gone = pandas.DataFrame({"age": [None, pandas.NA, float("nan")], "kind": ["a"] * 3, "code": [None, pandas.NA, ""]})
    p = predictor.probabilities(gone)
    assert torch.equal(p[0], p[1])
    assert torch.equal(p[0], p[2])


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_an_exported_table_model_takes_a_missing_number_as_the_mean(tmp_path: Path, format: str) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    result = fedframe.run("fedavg", data=f"csv:{table(tmp_path)}", clients=2, partition="iid", out=tmp_path / "run",
                          model="mlp:8", **SMALL)  # fmt: skip
    model = module.readers[format](result.export(format))
    assert result.model.columns is not None
    rows = torch.zeros(2, len(result.model.columns))
    age = result.model.columns.index("age")
    rows[0, age], rows[1, age] = float("nan"), result.model.mean[age]
    found = model(rows)
    assert bool(found.isfinite().all())
    assert torch.equal(found[0], found[1])
    card = (tmp_path / "run" / "export" / "MODEL_CARD.md").read_text()
    assert "sensitivity at 90 % specificity" in card
    assert "| F1 | AUROC |" in card


@pytest.mark.slow
def test_a_model_of_arrays_refuses_a_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    result = fedframe.run("fedavg", data=blobs(), model="mlp:8", out=tmp_path / "run", **SMALL)
    with pytest.raises(DataError, match="not trained on one"):
        result.model.predict(pandas.DataFrame({"a": [1.0]}))
