"""Updates of a round that are kept until all have come: in memory while they are few, else in a file of the run folder.

Merge rules look at blocks of columns of all updates, so what is in the file is read block by block and never mapped.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, Protocol

import torch
from torch import Tensor

MOST_IN_MEMORY = 512 << 20  # bytes; what comes after that goes to the file


class Columns(Protocol):
    """An update that can be cut into blocks of columns: a tensor, or one in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, columns: slice) -> Tensor: ...


class FileVector:
    """A float32 vector that lies in a file."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._file, self._start, self._length = file, start, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, columns: slice) -> Tensor:
        """Read these columns."""
        first, last, _ = columns.indices(self._length)
        found = torch.empty(last - first)
        view, done = found.numpy().data.cast("B"), 0
        while done < len(view):
            read = os.preadv(self._file.fileno(), [view[done:]], 4 * (self._start + first) + done)
            if not read:
                raise OSError(f"an update that was kept in {self._file.name} is cut off")
            done += read
        return found


class KeptUpdates:
    """Gathers updates; the file has no name, and is gone with the round."""

    def __init__(self, folder: Path, most: int = MOST_IN_MEMORY) -> None:
        self.folder, self.most = folder, most
        self.updates: list[Columns] = []
        self._bytes, self._written = 0, 0
        self._file: IO[bytes] | None = None

    def add(self, update: Tensor) -> None:
        """Keep one update of its own memory or, where there are many, write it down."""
        update = update.float().contiguous()
        self._bytes += update.nbytes
        if self._bytes <= self.most or not hasattr(os, "preadv"):
            self.updates.append(update)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder if self.folder.is_dir() else None)  # noqa: SIM115
        self._file.write(update.numpy().data.cast("B"))
        self._file.flush()
        self.updates.append(FileVector(self._file, self._written, len(update)))
        self._written += len(update)
