"""`digits`: the 1,797 hand-written digits of 8x8 pixels that scikit-learn carries; nothing to download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedframe.data.arrays import from_arrays
from fedframe.data.raw import Raw, Request
from fedframe.errors import DataError


def load_digits(request: Request) -> Raw:
    """All of them as one set; the test set is a share of it."""
    request.allow(())
    # scikit-learn takes over a second to import, so its file is read where it lies: 64 pixels (0 to 16) and the digit.
    package = find_spec("sklearn")
    places = package.submodule_search_locations if package is not None else None
    if not places:
        raise DataError("the data set digits comes with scikit-learn: pip install scikit-learn.")
    try:
        with gzip.open(Path(places[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
            values = np.loadtxt(file, delimiter=",").astype(np.uint8)
    except OSError:
        from sklearn.datasets import load_digits as read  # a release that keeps its file elsewhere

        values = np.column_stack([read().data, read().target]).astype(np.uint8)
    return from_arrays("digits", {"x": values[:, :-1].reshape(-1, 8, 8), "y": values[:, -1]}, "digits")
