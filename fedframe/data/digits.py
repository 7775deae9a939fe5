"""`digits`: the 1,797 hand-written digits of 8x8 pixels that scikit-learn carries; nothing to download."""

from __future__ import annotations

import numpy as np

from fedframe.data.arrays import from_arrays
from fedframe.data.raw import Raw, Request


def load_digits(request: Request) -> Raw:
    """All of them as one set; the test set is a share of it."""
    # scikit-learn takes a second to import: only for those who use it.
    from sklearn.datasets import load_digits as read

    request.allow(())
    found = read()
    return from_arrays("digits", {"x": found.images.astype(np.uint8), "y": found.target}, "digits")
