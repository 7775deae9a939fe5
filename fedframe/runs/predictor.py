"""A trained model that predicts: it turns inputs into class names and probabilities."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.method import Method
from fedframe.core.model import Model, load_tensors
from fedframe.data import normalised
from fedframe.data.arrays import array_inputs, check_finite
from fedframe.data.columns import OPTIONS, TableReading
from fedframe.data.images import SUFFIXES, decode
from fedframe.data.load import read_spec
from fedframe.data.spec import DataSchema
from fedframe.data.tables import AS_IT_IS, encode_rows, read_csv, read_parquet
from fedframe.data.target import Target
from fedframe.errors import DamageError, DataError
from fedframe.methods.recipes import MethodLike, confirm_method, make_method
from fedframe.models import build_net, frames
from fedframe.models.adapters import adapt
from fedframe.models.zoo import without_weights
from fedframe.runs.changes import CodeCheck, refuse_changed_code
from fedframe.runs.federated import how_it_ends
from fedframe.runs.folder import MODEL, RunFolder
from fedframe.runs.staging import is_pending
from fedframe.settings import REMOTE_DATA, Settings
from fedframe.util.allowed_code import allow_edited, check_named
from fedframe.util.files import write_tensors
from fedframe.util.plain_files import explained
from fedframe.util.seeds import seed_for

NOTES = ("method", "set", "model", "classes", "input_shape", "shares_a_model", "model_seed", "columns")
INPUT_TENSORS = {"input/mean", "input/std"}
AT_ONCE = 256  # inputs decoded and predicted together: memory stays bounded for folders of any size


def save_model(
    folder: Path, job: Job, flat: Tensor, replaced: Mapping[str, Tensor], table: Mapping[str, str] | None = None
) -> None:
    """Write the shared model with all that is needed to predict. Equal runs write equal bytes.

    `table` is how the table is read that a node has of its own; else the settings say it.
    """
    source = job.federation.source
    model = job.fresh_model().cpu()
    load_tensors(model, {**job.roles.layout.views(flat), **replaced})
    tensors = {f"model/{name}": tensor for name, tensor in named_tensors(model).items()}
    tensors |= {"input/mean": source.mean, "input/std": source.std}
    if source.target is not None and source.target.mean is not None and source.target.std is not None:
        tensors |= {"target/mean": source.target.mean, "target/std": source.target.std}
    notes = {
        "method": job.settings.method,
        "set": job.settings.set,
        "model": job.settings.model,
        "classes": list(source.outputs),
        "input_shape": list(source.input_shape),
        "shares_a_model": job.shares_a_model,
        "model_seed": seed_for(job.settings.seed, "model"),
        "columns": list(source.columns) if source.columns is not None else None,
        **({} if source.target is None else {"task": source.task}),
        **({"lora": adapter_settings(job.settings)} if job.settings.lora else {}),
        **(
            {"table": table_options(job.settings.data) if table is None else {**table}}
            if source.columns is not None
            else {}
        ),
    }
    write_tensors(folder / MODEL, tensors, notes)


def adapter_settings(settings: Settings) -> dict[str, object]:
    """What `adapt` is told of a run's adapters."""
    return {"rank": settings.lora, "alpha": settings.lora_alpha, "layers": settings.lora_layers}


@dataclass(frozen=True)
class Predictor:
    """A trained model, with the normalisation of its inputs and the names of its classes."""

    method: Method
    model: Model
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    columns: tuple[str, ...] | None
    mean: Tensor
    std: Tensor
    reading: TableReading = AS_IT_IS  # how the training table was read: decimal commas, dates, ...
    target: Target | None = None  # what is predicted, if it is no class

    @classmethod
    def load(
        cls,
        folder: str | Path,
        client: int | str | None = None,
        net: nn.Module | Callable[..., nn.Module] | None = None,
        method: MethodLike | None = None,
        changed_code: bool = False,
    ) -> Predictor:
        """Load the shared model of a finished run, or with `client` a client's own.

        Give a net or a method again if it exists only in Python. If its code has changed since the training, it is
        refused, unless `changed_code` is true.
        """
        python = f"predict there: fedframe.Predictor.load({str(folder)!r}, net=MyNet()).predict(inputs)"
        check: CodeCheck = "none" if changed_code else "all"
        predictor, shares_a_model = cls.load_shared(folder, net, python, method, check)
        if client is None and not shares_a_model:
            raise DataError(f"{predictor.method.name} has no shared model; choose a client's own with --client 0.")
        if client is not None:
            own = RunFolder(Path(folder)).personal_model(client)
            if not own.exists():
                instead = "leave --client out for the shared one" if shares_a_model else "run it with --save-personal"
                missing = own.relative_to(folder)
                raise DataError(f"Client {client} has no personal model in {folder} (no {missing}); {instead}.")
            load_saved(predictor.model, RunFolder(Path(folder)).read_model(own)[0], own)
        return predictor

    @classmethod
    def load_shared(
        cls,
        folder: str | Path,
        net: nn.Module | Callable[..., nn.Module] | None,
        python: str,
        method: MethodLike | None = None,
        code_check: CodeCheck = "all",
    ) -> tuple[Predictor, bool]:
        """What the clients of a finished run share, and whether that alone predicts.

        `python` says what to write where the net must come from Python.
        """
        path = Path(folder) / MODEL
        if is_pending(Path(folder)) or not path.exists():
            run = RunFolder.open(folder)
        if not path.exists():
            resume = f"finish the run with 'fedframe resume {folder}'."
            ends = how_it_ends(run.path) if run.settings().data == REMOTE_DATA else resume
            raise DataError(f"{folder} has no {MODEL} yet: {ends}")
        tensors, notes = RunFolder(Path(folder)).read_model(path)
        if missing := [name for name in NOTES if name not in notes] or sorted(INPUT_TENSORS - tensors.keys()):
            raise DamageError(f"{path} is damaged: it is no model of a run, for it has no {missing[0]}.", path)
        if notes["model"] == "python" and net is None:
            raise DataError(f"The net of {folder} came from Python; {python}.")
        confirm_method(notes["method"], method)
        if code_check == "none":
            allow_edited(notes["method"], notes["model"])
        refuse_changed_code(folder, net, code_check)
        check_named(notes["method"], notes["model"])
        task = notes.get("task", "classification")
        made = make_method(notes["method"], notes["set"], task)
        shape = tuple(notes["input_shape"])
        with torch.random.fork_rng(devices=[]), frames.loading_weights():
            torch.manual_seed(notes["model_seed"])  # a frozen classifier that could be built then can be built now
            named = net if net is not None else without_weights(str(notes["model"]))  # they are in the file
            backbone = build_net(named, shape)
            if "lora" in notes:
                adapt(backbone, **notes["lora"])
            model = made.build(backbone, int(backbone.dim), len(notes["classes"]))  # type: ignore[arg-type]
        load_saved(model, {name[6:]: value for name, value in tensors.items() if name.startswith("model/")}, path)
        model.eval()
        columns = tuple(notes["columns"]) if notes["columns"] is not None else None
        mean, std = tensors["input/mean"], tensors["input/std"]
        reading = TableReading.of(notes.get("table") or {})
        names, scale = tuple(notes["classes"]), (tensors.get("target/mean"), tensors.get("target/std"))
        target = None if task == "classification" else Target(task, names, *scale)
        predictor = cls(made, model, names, shape, columns, mean, std, reading, target)
        return predictor, bool(notes["shares_a_model"])

    @property
    def schema(self) -> DataSchema:
        """The form of the data that it was trained on."""
        classes = self.classes if self.target is None else ()
        return DataSchema(classes, self.stored_shape, self.columns, self.mean, self.std, self.target)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of one raw input. Images have their channels last."""
        shape = self.input_shape
        return (shape[1], shape[2], shape[0]) if len(shape) == 3 else shape

    @torch.no_grad()
    def probabilities(self, inputs: object, batch: int = 256) -> Tensor:
        """Return class probabilities of inputs: an array or tensor as in the training data, not normalised.

        A model that predicts numbers returns these (n, targets), in their own units. A model that predicts several
        labels returns the probability of each. Images are (n, H, W), (n, H, W, C) or (n, C, H, W), and vectors (n, d).
        A model of tables takes a DataFrame with the columns of the training table.
        """
        if is_table(inputs):
            inputs = self.encode_table(inputs)
        stored = array_inputs(inputs, "the inputs")
        check_finite(stored, "the inputs")
        raw = stored.tensor
        if tuple(raw.shape[1:]) != self.stored_shape:
            raise DataError(f"The inputs are of shape {tuple(raw.shape[1:])}, but the model takes {self.stored_shape}.")
        pieces = [
            self.method.probabilities(self.model, normalised(part, self.mean, self.std))
            for part in raw.split(batch)  # type: ignore[no-untyped-call]
        ]
        found = torch.cat(pieces) if pieces else torch.empty(0, len(self.classes))
        found = found if self.target is None else self.target.unscaled(found)
        if not bool(found.isfinite().all()):
            raise DataError("The model gives NaN for some inputs; its weights have diverged: train it again.")
        return found

    def predict(self, inputs: object) -> list[Any]:
        """Return the most probable class of each input; for other tasks its number or numbers, or its labels."""
        if self.target is not None:
            return [self.answer(row) for row in self.probabilities(inputs).tolist()]
        return [self.classes[int(index)] for index in self.probabilities(inputs).argmax(1)]

    def answer(self, row: Sequence[float]) -> Any:
        """What outputs of one input say, where they are no classes."""
        if self.target is not None and self.target.task == "multilabel":
            return [name for name, p in zip(self.classes, row, strict=True) if p >= 0.5]
        return row[0] if len(row) == 1 else list(row)

    def predict_table(self, inputs: Any) -> Any:
        """Return a DataFrame with a row per input: `prediction`, and a column of probabilities for every class."""
        if not is_table(inputs):
            raise DataError("predict_table takes a DataFrame; use predict or probabilities for arrays.")
        found = self.probabilities(inputs)
        if self.target is not None:
            return type(inputs)({name: found[:, c].tolist() for c, name in enumerate(self.classes)}, index=inputs.index)
        names = [self.classes[int(index)] for index in found.argmax(1)]
        columns = {name: found[:, c].tolist() for c, name in enumerate(self.classes)}
        title = next(name for name in ("prediction", "predicted class", "_prediction") if name not in columns)
        return type(inputs)({title: names, **columns}, index=inputs.index)

    def encode_table(self, table: Any) -> Tensor:
        """The rows of a DataFrame as raw inputs."""
        if self.columns is None:
            raise DataError("The inputs are a table, but the model was not trained on one; give an array.")
        missing = table.isna()
        rows = {
            str(name): [None if gone else value for value, gone in zip(table[name], missing[name], strict=True)]
            for name in table.columns
        }
        if len(rows) != len(table.columns):
            raise DataError("Two columns of the table have the same name; every column needs one of its own.")
        return encode_rows(rows, self.columns, self.mean, self.reading)


def load_saved(model: Model, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load tensors of a file into a model, or say that they are none of it."""
    try:
        load_tensors(model, tensors)
    except (KeyError, RuntimeError, ValueError, AttributeError) as error:
        raise DamageError(f"{path} does not fit the net of the run: {explained(error)}.", path) from error


def table_options(data: str) -> dict[str, str]:
    """How a table was read, from the text of the data; nothing for data that are no file."""
    options = read_spec(data).options if data.startswith(("csv:", "parquet:")) else {}
    return {name: value for name, value in options.items() if name in OPTIONS}


def is_table(inputs: object) -> bool:
    """Whether something is a DataFrame; pandas itself is not needed to know."""
    return all(hasattr(inputs, name) for name in ("columns", "isna", "index", "iloc"))


# -- files in, predictions out: `fedframe predict` ---------------------------------------------------------------------
def predict_file(
    folder: Path,
    path: Path,
    client: str | None,
    top: int,
    changed_code: bool = False,
    table: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A line per input, separated by tabs: its name, then the most probable classes, each with its probability.

    `table` has options about the columns of a table that is written differently from the one of the training.
    """
    RunFolder.open(folder)  # what is no run folder is refused with the same sentence as by other commands
    predictor = Predictor.load(folder, client, changed_code=changed_code)
    if table:
        predictor = replace(predictor, reading=predictor.reading.otherwise(table))
    for names, raw in read_inputs(path, predictor):
        found = predictor.probabilities(raw)
        if predictor.target is not None:
            yield from target_lines(predictor, names, found)
            continue
        best = found.topk(min(top, len(predictor.classes)))
        for name, values, indices in zip(names, best.values, best.indices, strict=True):
            pairs = [f"{predictor.classes[int(i)]}\t{float(v):.3f}" for v, i in zip(values, indices, strict=True)]
            yield "\t".join([name, *pairs])


def target_lines(predictor: Predictor, names: Sequence[str], found: Tensor) -> Iterator[str]:
    """A line per input: the numbers that are predicted, or every label with its probability."""
    digits = ".3f" if predictor.target is not None and predictor.target.task == "multilabel" else ".6g"
    for name, row in zip(names, found.tolist(), strict=True):
        pairs = [f"{output}\t{value:{digits}}" for output, value in zip(predictor.classes, row, strict=True)]
        yield "\t".join([name, *pairs])


def read_inputs(path: Path, predictor: Predictor) -> Iterator[tuple[list[str], Tensor]]:
    """Names and raw values of the inputs in a file or folder, a batch at a time."""
    if not path.exists():
        kind, _, rest = str(path).partition(":")  # as data are named for training
        itself = f" Give the {kind} file itself: {rest}" if rest and Path(rest).exists() else ""
        raise DataError(f"There is no {path}.{itself}")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} is a pipe or a device; predictions take a file or a folder.")
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in SUFFIXES:
        yield from read_images(path, predictor)
    elif suffix in (".npz", ".npy"):
        yield from numbered(read_arrays(path))
    elif suffix in (".csv", ".parquet"):
        if predictor.columns is None:
            raise DataError(f"{path} is a table, but the model was not trained on one.")
        reading = predictor.reading.for_columns(predictor.columns)
        table = (read_csv if suffix == ".csv" else read_parquet)(path, reading)
        rows = {name: column.tolist() for name, column in table.items()}
        yield from numbered(encode_rows(rows, predictor.columns, predictor.mean, reading))
    else:
        raise DataError(f"{path}: predictions take images, a folder of images, .npz, .npy, .csv or .parquet.")


def read_images(path: Path, predictor: Predictor) -> Iterator[tuple[list[str], Tensor]]:
    """An image, or all images below a folder."""
    paths = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    shape = predictor.stored_shape
    if len(shape) != 3:
        raise DataError(f"{path} holds images, but the model takes {shape[0]} numbers per input.")
    if not paths:
        raise DataError(f"{path} holds no images.")
    for start in range(0, len(paths), AT_ONCE):
        some = paths[start : start + AT_ONCE]
        pixels = np.stack([decode(p, (shape[0], shape[1], shape[2])) for p in some])
        yield [str(p) for p in some], torch.from_numpy(pixels)


def read_arrays(path: Path) -> Tensor:
    """The inputs in an array file: x, x_test, or the only array there is."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return array_inputs(loaded, str(path)).tensor
        name = next((name for name in ("x", "x_test") if name in loaded.files), None)
        if name is None and len(loaded.files) == 1:
            name = loaded.files[0]
        if name is None:
            raise DataError(f"{path} holds {', '.join(loaded.files)}; name the inputs x.")
        return array_inputs(loaded[name], str(path)).tensor
    except (
        ValueError,
        OSError,
        EOFError,
        KeyError,
        RuntimeError,
        MemoryError,
        SyntaxError,  # numpy parses an array's header as Python
        TokenError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{path} cannot be read: {explained(error)}.") from error


def numbered(raw: Tensor) -> Iterator[tuple[list[str], Tensor]]:
    """Rows by their number."""
    for start in range(0, len(raw), AT_ONCE):
        part = raw[start : start + AT_ONCE]
        yield [str(start + i) for i in range(len(part))], part
