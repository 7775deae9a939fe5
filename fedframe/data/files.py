"""Where data files lie, how they are fetched and unpacked, and a sentence for each way that can fail."""

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

from fedframe.data.spec import Request
from fedframe.errors import DataError


@dataclass(frozen=True)
class Remote:
    """A file at its publisher's: addresses to try in turn, and its checksum."""

    file: str
    urls: tuple[str, ...]
    md5: str


def root(request: Request) -> Path:
    """The data folder: the data_dir setting, else $FEDFRAME_DATA, else a cache folder of the user."""
    if request.data_dir is not None:
        return Path(request.data_dir).expanduser()
    if os.environ.get("FEDFRAME_DATA"):
        return Path(os.environ["FEDFRAME_DATA"]).expanduser()
    import pooch

    return Path(pooch.os_cache("fedframe"))


def places(request: Request, customary: Iterable[str]) -> list[Path]:
    """Folders to look in: DATA/<name>, the customary sub-folders, DATA itself."""
    base = root(request)
    return [base / request.name, *(base / name for name in customary), base]


def locate(folders: Iterable[Path], names: Sequence[str]) -> Path | None:
    """The first folder that has one of these names: that file or folder."""
    for folder in folders:
        for name in names:
            with suppress(OSError):  # a folder that may not be read has nothing for us
                if (folder / name).exists():
                    return folder / name
    return None


def fetch(request: Request, remotes: Sequence[Remote], belong: str) -> Path:
    """Download files into DATA/<name> and check them; give that folder.

    belong: which files a user can put there by hand, for the sentence when this fails.
    """
    folder = root(request) / request.name
    put = f"put {belong} into {folder.absolute()}."
    if not request.download:
        raise DataError(f"{request.name} is not in {root(request).absolute()} and downloads are off: {put}")
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    for remote in remotes:
        problem: Exception | None = None
        for url in remote.urls:
            downloader = pooch.HTTPDownloader(progressbar=Progress(remote.file), timeout=30)
            try:
                pooch.retrieve(url, f"md5:{remote.md5}", remote.file, folder, downloader=downloader)
                break
            except (OSError, ValueError) as error:  # no network, no disk, wrong checksum
                problem = error
        else:
            with suppress(OSError):
                folder.rmdir()  # made for the download, and empty
            raise DataError(
                f"{request.name} is not in {root(request).absolute()} and {remote.file} could not be "
                f"downloaded from {remote.urls[-1]} ({type(problem).__name__}): {put}"
            )
    return folder


class Progress:
    """A line on the terminal that says how much of a file has come; silent where nobody watches."""

    def __init__(self, file: str) -> None:
        self.file, self.total, self._done = file, 0, 0

    def update(self, count: int) -> None:
        """More bytes have come."""
        self._done += count
        if sys.stderr.isatty():
            share = f" of {self.total / 1e6:.0f}" if self.total else ""
            sys.stderr.write(f"\r{self.file}: {self._done / 1e6:.0f}{share} MB ")

    def reset(self) -> None:
        """Start again from nothing."""
        self._done = 0

    def close(self) -> None:
        """The file is complete."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def read(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in .gz."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or cut short ({error}); a complete gzip file is expected.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None


def unpack(archive: Path, members: Sequence[str], folder: Path) -> None:
    """Write these members of a zip or tar.gz archive into a folder, under their own last names.

    Nothing else of the archive is written, so no path in it can lead anywhere else.
    """
    wanted = dict.fromkeys(members)
    for name, data in _members(archive):
        if name in wanted:
            write(folder / PurePosixPath(name).name, data)
            del wanted[name]
        if not wanted:
            return
    raise DataError(f"{archive} lacks {', '.join(wanted)}: it is not the archive that is expected.")


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of the regular files in an archive."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as pack:
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


def write(path: Path, data: bytes) -> None:
    """Write a file so that it is there complete or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(f"{path} cannot be written ({error.strerror}): choose another data_dir.") from None
