"""What a model learns to say of a sample: its class, numbers (regression), or which of several labels it has.

Numbers and several labels per sample are kept beside the classes (`Samples.values`). The classes of such a set are its
*strata*: tenths of the first number, or the rarest label of a sample. They are never learned. They deal samples out to
clients, and hold out test sets that look like the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fedframe.errors import DataError

Task = Literal["classification", "regression", "multilabel"]
TASKS: tuple[Task, ...] = ("classification", "regression", "multilabel")
BINS = 10  # strata of a number, at most
FEWEST_IN_BIN = 10  # samples; with fewer there are fewer strata
MANY_NUMBERS = 20  # different whole numbers in a label column: more are classes only if each has samples enough
NO_LABEL = "none"
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Target:
    """What is learned where it is no class: the names of the outputs and, of numbers, the scale they are learned in."""

    task: Task
    names: tuple[str, ...]
    mean: torch.Tensor | None = None  # (outputs,): a number is learned as (number - mean) / std
    std: torch.Tensor | None = None

    def scaled(self, values: torch.Tensor) -> torch.Tensor:
        """Values as they are learned."""
        if self.mean is None or self.std is None:
            return values
        return (values.double() - self.mean.double()).div_(self.std.double()).float()

    def unscaled(self, values: torch.Tensor) -> torch.Tensor:
        """Values in their own units again."""
        return values if self.mean is None or self.std is None else values * self.std + self.mean


@dataclass(frozen=True)
class EncodedTarget:
    """The target of a set in its own units, and the strata of its samples."""

    target: Target
    values: torch.Tensor  # float32 (n, outputs)
    values_test: torch.Tensor | None
    y: Ints
    y_test: Ints | None
    strata: tuple[str, ...]

    @property
    def note(self) -> str:
        """What the task is, for the user."""
        names = ", ".join(self.target.names[:5]) + (", ..." if len(self.target.names) > 5 else "")
        if self.target.task == "regression":
            return f"The task is regression: the model learns the numbers {names}."
        return f"The task is multilabel: the model learns which of {names} a sample has."


def find_task(asked: str, first: Any, what: str) -> Task:
    """The task of a target: as asked, or what its values plainly are.

    Fractions are numbers to learn. Several columns of 0 and 1 are labels of which a sample may have many, unless every
    sample has exactly one.
    """
    if asked != "auto":
        return asked  # type: ignore[return-value]
    array = as_array(first)
    if array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "buif":
        if not np.isin(array, (0, 1)).all():
            return "regression"
        if (array.sum(1) == 1).all():
            raise DataError(
                f"{what} has {array.shape[1]} columns of which every row has exactly one 1: classes written that way, "
                "or labels? Give the number of the class (argmax), or set task = multilabel."
            )
        return "multilabel"
    fractions = array.dtype.kind == "f" and np.isfinite(array).all() and not (array == np.floor(array)).all()
    return "regression" if fractions else "classification"


def as_array(values: Any) -> npt.NDArray[Any]:
    """Values as a numpy array; one column counts as none."""
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def encode_target(
    task: Task, first: Any, second: Any | None, names: tuple[str, ...] | None, what: str
) -> EncodedTarget:
    """Numbers, or labels that a sample has or has not, of the training set and, if there is one, of the test set."""
    parts = [matrix(part, task, what) for part in (first, second) if part is not None]
    if len({part.shape[1] for part in parts}) > 1:
        raise DataError(f"{what}: training and test set have different numbers of columns; they must agree.")
    width = parts[0].shape[1]
    if names is None:
        names = tuple(map(str, range(width))) if width > 1 else ("target",)
    strata, texts = strata_of(task, parts, names)
    values = [torch.from_numpy(part.astype(np.float32)) for part in parts]
    return EncodedTarget(
        Target(task, names),
        values[0],
        values[1] if len(values) > 1 else None,
        strata[0],
        strata[1] if len(strata) > 1 else None,
        texts,
    )


def matrix(values: Any, task: Task, what: str) -> Floats:
    """A target as float64 (n, outputs), checked."""
    array = as_array(values)
    array = array[:, None] if array.ndim == 1 else array
    if array.dtype.kind not in "buif" or array.ndim != 2:
        raise DataError(
            f"{what} holds values of type {array.dtype} in shape {array.shape}; task = {task} takes numbers of shape "
            "(n,) or (n, outputs)."
        )
    found: Floats = array.astype(np.float64)
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(1))[0])
        raise DataError(f"{what} holds NaN or infinity, first in row {row}; every sample needs a value.")
    if task == "multilabel" and not np.isin(found, (0, 1)).all():
        raise DataError(
            f"{what} holds other values than 0 and 1; task = multilabel needs 1 where a sample has a label."
        )
    if task == "regression" and np.abs(found).max(initial=0.0) > np.finfo(np.float32).max:
        raise DataError(f"{what} holds numbers beyond those of float32; use a larger unit.")
    return found


# -- strata ------------------------------------------------------------------------------------------------------------
def strata_of(task: Task, parts: list[Floats], names: tuple[str, ...]) -> tuple[list[Ints], tuple[str, ...]]:
    """The stratum of every sample of both sets, and what strata are called; the training set decides on them."""
    return quantile_bins(parts, names[0]) if task == "regression" else rarest_labels(parts, names)


def quantile_bins(parts: list[Floats], name: str) -> tuple[list[Ints], tuple[str, ...]]:
    """Tenths of the first number (fewer of a small set), each with about as many training samples."""
    first = parts[0][:, 0]
    count = min(BINS, max(1, len(first) // FEWEST_IN_BIN))
    cuts = np.unique(np.quantile(first, np.arange(1, count) / count)) if count > 1 else np.empty(0)
    cuts = cuts[(cuts > first.min()) & (cuts <= first.max())]
    ends = [f"{value:.4g}" for value in cuts]
    if not ends:
        texts = [name]
    else:
        inner = [f"{name} {low} to {high}" for low, high in pairwise(ends)]
        texts = [f"{name} below {ends[0]}", *inner, f"{name} {ends[-1]} or more"]
    if len(set(texts)) < len(texts):  # numbers that differ beyond four digits
        texts = [f"{text} ({number})" for number, text in enumerate(texts, start=1)]
    return [np.searchsorted(cuts, part[:, 0], side="right").astype(np.int64) for part in parts], tuple(texts)


def rarest_labels(parts: list[Floats], names: tuple[str, ...]) -> tuple[list[Ints], tuple[str, ...]]:
    """The label of each sample that the fewest training samples have, or none."""
    order = np.lexsort((np.arange(len(names)), parts[0].sum(0)))  # rarest first
    found = []
    for part in parts:
        sorted_labels = part[:, order] > 0
        found.append(np.where(sorted_labels.any(1), order[sorted_labels.argmax(1)], len(names)).astype(np.int64))
    held = np.unique(np.concatenate(found))
    texts = (*names, NO_LABEL if NO_LABEL not in names else f"{NO_LABEL} of them")
    return [np.searchsorted(held, each).astype(np.int64) for each in found], tuple(texts[i] for i in held.tolist())
