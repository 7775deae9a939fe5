"""Refusing files that unpack to far more than they are, before they fill memory: a few kilobytes can hold a petabyte.

What a file says of its own contents is looked at first, and where it may lie (gzip) unpacking stops at the limit. Up to
`SMALL` bytes, or `RATIO` times the size of the file, anything goes: real data compress by 2 to 50.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

from fedframe.errors import DataError

SMALL, RATIO = 1 << 28, 100
GZIP = 16 + zlib.MAX_WBITS


def most_unpacked(size: int) -> int:
    """The bytes that a packed file of this size may hold."""
    return max(SMALL, RATIO * size)


def refuse_bomb(path: Path, declared: int, size: int, instead: str) -> None:
    """Refuse a file of `size` bytes that says that it holds `declared` ones; `instead`: what to do if that is right."""
    if declared > most_unpacked(size):
        raise DataError(
            f"{path} has {size:,} bytes and unpacks to {declared:,}, more than {RATIO} times as many: it is not "
            f"opened; if that is right, {instead}."
        )


def refuse_zip_bomb(path: Path, archive: zipfile.ZipFile, instead: str) -> None:
    """The same for a zip archive, by what it says of all its members."""
    refuse_bomb(path, sum(entry.file_size for entry in archive.infolist()), path.stat().st_size, instead)


def gunzip(data: bytes, path: Path) -> bytes:
    """Unpack gzip, of one part or several; up to the limit, as its own word on its size can be wrong."""
    found, left, most = io.BytesIO(), data, most_unpacked(len(data))
    while left:
        unpacking = zlib.decompressobj(GZIP)
        found.write(unpacking.decompress(left, most + 1 - found.tell()))
        if found.tell() > most:
            refuse_bomb(path, found.tell(), len(data), "unpack it by hand, and name what comes out")
        if not unpacking.eof:
            raise EOFError("it ends in the middle")
        left = unpacking.unused_data.lstrip(b"\0")  # padding of tapes and block devices
    return found.getvalue()
