"""`npz:PATH`: arrays x_train, y_train and, if there, x_test, y_test, user_train, user_test in one file."""

from __future__ import annotations

import zipfile
import zlib

import numpy as np

from fedframe.data.arrays import from_arrays
from fedframe.data.raw import Raw, Request
from fedframe.errors import DataError


def load_npz(request: Request) -> Raw:
    """Read the file; no pickle is ever opened."""
    request.allow(())
    path = request.file
    if path.is_file() and path.stat().st_size and path.open("rb").read(2) not in (b"PK", b"\x93N"):
        raise DataError(f"{path} is no npz file; np.savez(path, x_train=..., y_train=...) writes one.")
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(f"{path} is no npz file; np.savez(path, x_train=..., y_train=...) writes one.")
        with file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, RuntimeError, MemoryError) as error:
        raise DataError(f"{path} is damaged or cut short ({error}); a complete npz file is expected.") from None
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path} holds Python objects, which are never opened; save plain arrays of numbers or texts."
            ) from None
        raise DataError(f"{path} is damaged or no npz file ({error}).") from None
    return from_arrays(path.stem, arrays, str(path))
