"""A finished run's model as one file that other programs use: ONNX, torch.export or TorchScript.

The file takes inputs as they are in the data (pixels, the table's encoded columns) and gives class probabilities:
normalisation is inside, and so are the names of the classes and columns. It is compared with our own predictions on
real samples before it takes its place; beside it stand a model card and ten lines of Python that use it without
Fedframe.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedframe.analysis.finished_run import FinishedRun, Net
from fedframe.analysis.model_card import model_card
from fedframe.errors import DataError, FedframeError, RunError, SettingError, nearest
from fedframe.runs.folder import RunFolder
from fedframe.runs.predictor import Predictor
from fedframe.util.files import write_text

FILES = {"onnx": "model.onnx", "torch": "model.pt2", "torchscript": "model.ts"}
MOST_CHECKED = 256  # samples that the file's predictions are compared on
CLOSE = 1e-5  # largest difference of a probability
CARD, LOADER = "MODEL_CARD.md", "use_model.py"
NOTES = "fedframe.json"  # the name of what is known about the model inside the file


@dataclass(frozen=True)
class Exported:
    """What was written, and how it was checked."""

    folder: Path
    file: Path
    samples: int  # compared with our own predictions
    real: bool  # whether these are samples of the run's data
    difference: float  # the largest of a probability


class RawModel(nn.Module):
    """From inputs as they are in the data to class probabilities."""

    mean: Tensor
    std: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.model, self.method = predictor.model, predictor.method
        self.table = predictor.columns is not None
        self.images = len(predictor.input_shape) == 3
        self.target = predictor.target
        self.register_buffer("mean", predictor.mean.clone())
        self.register_buffer("std", predictor.std.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, H, W, C) or (n, d) to (n, classes): probabilities, or numbers in their own units."""
        if self.table:  # as in training: a missing number is the mean
            inputs = torch.where(inputs.isnan(), self.mean, inputs)
        x = (inputs - self.mean) / self.std
        found = self.method.probabilities(self.model, x.permute(0, 3, 1, 2).contiguous() if self.images else x)
        return found if self.target is None else self.target.unscaled(found)


def export(
    folder: str | Path,
    format: str = "onnx",
    client: int | str | None = None,
    out: str | Path | None = None,
    *,
    net: Net | None = None,
    data: object = None,
) -> Exported:
    """Write the shared model of a finished run, or a client's own, for use without Fedframe.

    `out` is a folder (default: `export` in the run's, with the client's name if it is a client's own).
    """
    if format not in FILES:
        raise SettingError(f"format = {format!r}: {nearest(format, FILES)}")
    run = RunFolder.open(folder)
    predictor = Predictor.load(run.path, client, net)
    samples, real = real_samples(run.path, predictor, net, data)
    expected = predictor.probabilities(samples)
    target = Path(out) if out is not None else run.path / ("export" if client is None else f"export-{client}")
    target.mkdir(parents=True, exist_ok=True)
    notes = {
        "classes": list(predictor.classes),
        "columns": list(predictor.columns) if predictor.columns is not None else None,
        "input_shape": list(predictor.stored_shape),
        "input": "float32, as in the data: not normalised",
        "output": OUTPUTS[predictor.schema.task],
        **({} if predictor.target is None else {"task": predictor.target.task}),
    }
    handle, name = tempfile.mkstemp(dir=target, suffix=Path(FILES[format]).suffix)
    os.close(handle)
    partial = Path(name)
    try:
        try:
            writers[format](RawModel(predictor).eval(), samples[:2], partial, notes)
        except FedframeError:
            raise
        except Exception as error:  # exporters raise whatever they like on nets that they cannot express
            reason = " ".join(str(error).split())[:200]
            raise RunError(
                f"The net of {folder} cannot be written as {format} ({type(error).__name__}: {reason}); try --format "
                f"{'torchscript' if format != 'torchscript' else 'onnx'}."
            ) from error
        found = readers[format](partial)(samples)
        difference = float((found - expected).abs().max())
        if found.shape != expected.shape or not difference <= CLOSE * largest(expected, predictor):
            raise RunError(
                f"The {format} file of {folder} predicts differently from the run's model (an output differs by "
                f"{difference:.2g}); it is not kept. Try --format {'torch' if format != 'torch' else 'onnx'}."
            )
        partial.chmod(0o644)
        partial.replace(target / FILES[format])
    finally:
        partial.unlink(missing_ok=True)
    write_text(target / LOADER, loader(format, notes))
    made = Exported(target, target / FILES[format], len(samples), real, difference)
    write_text(target / CARD, model_card(run, predictor, client, FILES[format], checked_text(made)))
    return made


def largest(expected: Tensor, predictor: Predictor) -> float:
    """The size of outputs that differences are measured by: of probabilities 1, of numbers the largest one."""
    numbers = predictor.schema.task == "regression" and expected.numel()
    return max(1.0, float(expected.abs().max())) if numbers else 1.0


def checked_text(made: Exported) -> str:
    """How the file was checked, as a sentence."""
    what = "real samples" if made.real else "random inputs (the data are not available here)"
    return (
        f"Checked before it was written: on {made.samples} {what} its outputs differ from Fedframe's own by at most "
        f"{made.difference:.1g}."
    )


def real_samples(path: Path, predictor: Predictor, net: Net | None, data: object) -> tuple[Tensor, bool]:
    """Raw inputs of the run's test or training data; random ones where the data are elsewhere."""
    with contextlib.suppress(FedframeError):  # the data have moved, or stay at the nodes of a federation
        source = FinishedRun(path, net, data).source
        pool = source.test if source.test is not None and len(source.test) else source.train
        if len(pool):
            rows = torch.arange(0, len(pool), max(1, len(pool) // MOST_CHECKED))[:MOST_CHECKED]
            return pool.x.take(rows).float(), True
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn((32, *predictor.stored_shape), generator=draw)
    return noise * predictor.std + predictor.mean, False


# -- formats -----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Exporters speak of their own affairs at length."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def program(model: RawModel, example: Tensor) -> torch.export.ExportedProgram:
    """The model as a graph for any number of inputs."""
    with quiet(), torch.no_grad():
        return torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))


def write_torch(model: RawModel, example: Tensor, path: Path, notes: dict[str, Any]) -> None:
    """A torch.export archive, which torch alone loads."""
    with quiet():
        torch.export.save(program(model, example), path, extra_files={NOTES: json.dumps(notes)})


def read_torch(path: Path) -> Callable[[Tensor], Tensor]:
    """Load it as its users do."""
    with quiet():
        net = torch.export.load(path).module()
    return lambda inputs: net(inputs).detach()


def write_torchscript(model: RawModel, example: Tensor, path: Path, notes: dict[str, Any]) -> None:
    """A TorchScript file, for C++ and older programs."""
    with quiet(), torch.no_grad():
        traced = torch.jit.trace(model, (example,), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, path, _extra_files={NOTES: json.dumps(notes)})


def read_torchscript(path: Path) -> Callable[[Tensor], Tensor]:
    """Load it as its users do."""
    with quiet():
        net = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return lambda inputs: net(inputs).detach()


def write_onnx(model: RawModel, example: Tensor, path: Path, notes: dict[str, Any]) -> None:
    """An ONNX file with the names among its metadata."""
    require_onnx()
    import onnx

    with quiet(), torch.no_grad():
        made = torch.onnx.export(
            model, (example,), dynamo=True, input_names=["inputs"], output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
        )  # fmt: skip
    assert made is not None
    proto = made.model_proto
    for key, value in notes.items():
        proto.metadata_props.append(onnx.StringStringEntryProto(key=key, value=json.dumps(value)))
    onnx.checker.check_model(proto)
    onnx.save_model(proto, path)


def read_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """Run it as its users do."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(np.asarray(session.run(None, {"inputs": inputs.numpy()})[0]))


def require_onnx() -> None:
    """Say what to install where ONNX is not there."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"format = onnx needs {error.name}: pip install 'fedframe[export]', or use --format torch."
        ) from None


writers = {"onnx": write_onnx, "torch": write_torch, "torchscript": write_torchscript}
readers = {"onnx": read_onnx, "torch": read_torch, "torchscript": read_torchscript}

OUTPUTS = {
    "classification": "class probabilities, in the order of classes",
    "regression": "predicted numbers, in the order of classes (what they are called) and in their own units",
    "multilabel": "the probability of each label, in the order of classes (what they are called)",
}
GIVES = {
    "classification": "class names and probabilities",
    "regression": "the names of the predicted numbers, and these",
    "multilabel": "the names of the labels, and the probability of each",
}
# -- how to use it -----------------------------------------------------------------------------------------------------
USE = {
    "onnx": """import json
import pathlib

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(pathlib.Path(__file__).with_name("model.onnx"))
notes = session.get_modelmeta().custom_metadata_map
classes = json.loads(notes["classes"])


def predict(inputs):
    (p,) = session.run(None, {"inputs": np.asarray(inputs, np.float32)})
    return [classes[i] for i in p.argmax(1)], p
""",
    "torch": """import json
import pathlib

import torch

extra = {"fedframe.json": ""}
net = torch.export.load(pathlib.Path(__file__).with_name("model.pt2"), extra_files=extra).module()
classes = json.loads(extra["fedframe.json"])["classes"]


def predict(inputs):
    p = net(torch.as_tensor(inputs, dtype=torch.float32)).detach()
    return [classes[i] for i in p.argmax(1)], p.numpy()
""",
    "torchscript": """import json
import pathlib

import torch

extra = {"fedframe.json": ""}
net = torch.jit.load(str(pathlib.Path(__file__).with_name("model.ts")), _extra_files=extra)
classes = json.loads(extra["fedframe.json"])["classes"]


def predict(inputs):
    p = net(torch.as_tensor(inputs, dtype=torch.float32)).detach()
    return [classes[i] for i in p.argmax(1)], p.numpy()
""",
}


def loader(format: str, notes: dict[str, Any]) -> str:
    """A few lines of Python that use the file without Fedframe."""
    shape = " x ".join(map(str, notes["input_shape"]))
    what = f"images (n x {shape}), as in the data" if len(notes["input_shape"]) == 3 else f"rows (n x {shape})"
    columns = f"\nThe columns of a row are: {', '.join(notes['columns'])}." if notes["columns"] else ""
    task = notes.get("task", "classification")
    gives, use = GIVES[task], USE[format]
    if task != "classification":  # outputs are numbers, or the probability of each label: no class is the likeliest
        use = use.replace("[classes[i] for i in p.argmax(1)]", "classes")
    return f'"""Predict with {FILES[format]}: predict(inputs) gives {gives}.\n\n' + (
        f'Inputs are {what}, not normalised.{columns}\n"""\n\n{use}'
    )
