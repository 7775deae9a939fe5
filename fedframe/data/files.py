"""Finding, downloading, reading and extracting data files, with a clear error for every way this can fail."""

from __future__ import annotations

import gzip
import logging
import os
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedframe.data.spec import DataSpec
from fedframe.errors import DataError, RunError
from fedframe.util.files import write_bytes
from fedframe.util.unpacking import gunzip, refuse_zip_bomb


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: URLs to try in turn, and its checksum."""

    file: str
    urls: tuple[str, ...]
    md5: str


def data_root(spec: DataSpec) -> Path:
    """The data folder: the data_dir setting, else $FEDFRAME_DATA, else the user's cache folder."""
    if spec.data_dir is not None:
        return Path(spec.data_dir).expanduser()
    if os.environ.get("FEDFRAME_DATA"):
        return Path(os.environ["FEDFRAME_DATA"]).expanduser()
    import pooch

    return Path(pooch.os_cache("fedframe"))


def search_folders(spec: DataSpec, subfolders: Iterable[str]) -> list[Path]:
    """Folders to search: DATA/<name>, the subfolders that other tools use, DATA itself."""
    base = data_root(spec)
    return [base / spec.name, *(base / name for name in subfolders), base]


def find_first(folders: Iterable[Path], names: Sequence[str]) -> Path | None:
    """The first of these names that exists as a file or folder in one of the folders."""
    for folder in folders:
        for name in names:
            with suppress(OSError):  # a folder without read permission counts as empty
                if (folder / name).exists():
                    return folder / name
    return None


def download_files(spec: DataSpec, remotes: Sequence[RemoteFile], expected: str) -> Path:
    """Download files into DATA/<name>, check them and return that folder.

    `expected` names the files that a user can put there by hand, for the error message when this fails.
    """
    folder = data_root(spec) / spec.name
    advice = f"put {expected} into {folder.absolute()}."
    if not spec.download:
        raise DataError(f"{spec.name} is not in {data_root(spec).absolute()} and downloads are off: {advice}")
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    for remote in remotes:
        problem: Exception | None = None
        for url in remote.urls:
            downloader = pooch.HTTPDownloader(progressbar=DownloadProgress(remote.file), timeout=30)
            try:
                pooch.retrieve(url, f"md5:{remote.md5}", remote.file, folder, downloader=downloader)
                break
            except (OSError, ValueError) as error:  # no network, no disk, wrong checksum
                problem = error
        else:
            with suppress(OSError):
                folder.rmdir()  # pooch creates it for the download
            raise DataError(
                f"{spec.name} is not in {data_root(spec).absolute()} and {remote.file} could not be "
                f"downloaded from {remote.urls[-1]} ({type(problem).__name__}): {advice}"
            )
    return folder


class DownloadProgress:
    """Shows on a terminal how much of a file has been downloaded (the interface that pooch expects)."""

    def __init__(self, file: str) -> None:
        self.file, self.total, self._done = file, 0, 0

    def update(self, count: int) -> None:
        """Count downloaded bytes."""
        self._done += count
        if sys.stderr.isatty():
            share = f" of {self.total / 1e6:.0f}" if self.total else ""
            sys.stderr.write(f"\r{self.file}: {self._done / 1e6:.0f}{share} MB ")

    def reset(self) -> None:
        """Start again from zero."""
        self._done = 0

    def close(self) -> None:
        """End the line."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz."""
    try:
        data = path.read_bytes()
        return gunzip(data, path) if path.suffix == ".gz" else data
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or cut short ({error}); a complete gzip file is expected.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None


def extract(archive: Path, members: Sequence[str], folder: Path) -> None:
    """Extract these members of a zip or tar.gz archive into a folder, without their directories.

    Nothing else is written, so no path in the archive can lead outside the folder.
    """
    wanted = dict.fromkeys(members)
    for name, data in _members(archive):
        if name in wanted:
            write_data_file(folder / PurePosixPath(name).name, data)
            del wanted[name]
        if not wanted:
            return
    raise DataError(f"{archive} lacks {', '.join(wanted)}: it is not the archive that is expected.")


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Iterate over the names and contents of the regular files in an archive."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as pack:
                refuse_zip_bomb(archive, pack, "unpack it by hand beside it")
                for entry in pack.infolist():
                    if not entry.is_dir():
                        yield entry.filename, pack.read(entry)
        else:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    file = tar.extractfile(member) if member.isreg() else None
                    if file is not None:
                        yield member.name.removeprefix("./"), file.read()
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        RuntimeError,
    ) as error:
        raise DataError(f"{archive} is damaged or cut short ({error}); download it again.") from None


def write_data_file(path: Path, data: bytes) -> None:
    """Write a whole file or none of it."""
    try:
        write_bytes(path, data)
    except RunError as error:
        cause = error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) else error
        raise DataError(f"{path} cannot be written ({reason}): choose another data_dir.") from None
