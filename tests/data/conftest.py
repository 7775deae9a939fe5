"""What the tests of fedframe.data share: small sources made from labels alone."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data import ArrayInputs, Samples, Source


def source_of(
    labels: Sequence[int] | npt.NDArray[np.int64],
    classes: int,
    users: npt.NDArray[np.int64] | None = None,
    test: Sequence[int] | npt.NDArray[np.int64] = (),
) -> Source:
    """A source whose inputs do not matter."""

    def samples(y: npt.NDArray[np.int64], user: npt.NDArray[np.int64] | None) -> Samples:
        return Samples(ArrayInputs(torch.zeros(len(y), 1)), torch.from_numpy(y), user)

    return Source(
        "toy",
        samples(np.asarray(labels, np.int64), users),
        samples(np.asarray(test, np.int64), None),
        tuple(f"c{i}" for i in range(classes)),
        torch.zeros(1),
        torch.ones(1),
    )


def idx_bytes(array: npt.NDArray[np.uint8]) -> bytes:
    """An array as the content of an IDX file."""
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_gz(path: Path, data: bytes) -> None:
    """A gzip file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data))


def sentence(call: Callable[[], object], kind: type[Exception]) -> str:
    """The message of the error that a call ends in: one line, ended by a full stop or question mark."""
    try:
        call()
    except kind as error:
        text = str(error)
        assert "\n" not in text
        assert text.endswith((".", "?")), text
        return text
    raise AssertionError(f"no {kind.__name__} was raised")
