"""Finished cells in one small file, so that a grid that takes days goes on on another machine.

A cell counts as finished by its settings and its scores, a few kilobytes; models and checkpoints stay behind. The
folder of the data sets is written as `{data_dir}`, because it is another one elsewhere.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fedframe.errors import DataError
from fedframe.experiments.grid.cell import DIVERGED
from fedframe.runs.folder import CLIENT_SCORES, CONFIG, INPUTS
from fedframe.runs.round_files import METRICS, SUMMARY
from fedframe.util.checksums import DIGITS, IN_JSON, IN_YAML
from fedframe.util.files import write_bytes
from fedframe.util.unpacking import refuse_zip_bomb

SCORES = (CLIENT_SCORES, METRICS, INPUTS, CONFIG)  # beside the file that says that the cell has ended
ENDS = (SUMMARY, DIVERGED)
DATA_FOLDER = "{data_dir}"
EPOCH = (1980, 1, 1, 0, 0, 0)  # equal cells give equal files, whenever they are packed


def pack(archive: Path, runs: Path, data_dir: Path) -> int:
    """Add the finished cells below `runs` to the archive, which keeps those that it has; how many it then holds."""
    held = _read(archive) if archive.exists() else {}
    before = {*held}
    for folder in _finished(runs):
        for name in (*SCORES, *ENDS):
            if (folder / name).is_file():
                text = (folder / name).read_text(encoding="utf-8")
                held.setdefault(f"{folder.relative_to(runs).as_posix()}/{name}", _portable(text, data_dir))
    if {*held} != before:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for name, text in sorted(held.items()):
                packed.writestr(zipfile.ZipInfo(name, EPOCH), text, zipfile.ZIP_DEFLATED, 9)
        write_bytes(archive, buffer.getvalue())
    return sum(PurePosixPath(name).name in ENDS for name in held)


def unpack(archive: Path, runs: Path, data_dir: Path) -> int:
    """Lay the archive's cells down below `runs`, where there is no run yet; how many were new."""
    held = _read(archive)
    new = 0
    for place in sorted({str(PurePosixPath(name).parent) for name in held}):
        folder = runs / place
        if (folder / CONFIG).exists():
            continue
        names = [name for name in (*ENDS, *SCORES) if f"{place}/{name}" in held]  # last the file that makes it a run
        for name in names:
            write_bytes(folder / name, held[f"{place}/{name}"].replace(DATA_FOLDER, str(data_dir)).encode())
        new += 1
    return new


def _finished(runs: Path) -> Iterator[Path]:
    for path in sorted(runs.rglob(CONFIG)):
        if any((path.parent / end).exists() for end in ENDS):
            yield path.parent


def _portable(text: str, data_dir: Path) -> str:
    """The text without the data folder's path; then without its checksum as well, which would no longer fit."""
    places = dict.fromkeys((str(data_dir), str(data_dir.resolve())))  # behind a link a run names both
    if not any(place in text for place in places):
        return text
    for marker, end in ((IN_YAML.decode(), "\n"), (IN_JSON.decode(), '",')):
        head, found, rest = text.partition(marker)
        text = head + rest[DIGITS:].removeprefix(end) if found else text
    for place in places:
        text = text.replace(place, DATA_FOLDER)
    return text


def _read(archive: Path) -> dict[str, str]:
    try:
        with zipfile.ZipFile(archive) as packed:
            refuse_zip_bomb(archive, packed, "unpack and pack it again with less compression")
            found = {name: packed.read(name).decode() for name in packed.namelist()}
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, UnicodeDecodeError) as error:
        raise DataError(f"{archive} is no file of finished runs ({error}); remove it, or name another.") from error
    for name in found:
        parts = PurePosixPath(name).parts
        if parts[0] == "/" or ".." in parts or parts[-1] not in (*SCORES, *ENDS):
            raise DataError(f"{archive} holds {name!r}, which is no file of a finished run; name another.")
    return found
