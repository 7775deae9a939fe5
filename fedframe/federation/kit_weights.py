"""The file of initial weights that a kit may bring along: where a node has it, and that it is the agreed one.

An agreement notes the file's digest. A node uses the file that came with its kit; without one, it needs the file at the
agreed path. Either must have the agreed content.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from fedframe.errors import DataError, SettingError
from fedframe.network.certificates import write_secret
from fedframe.settings import Settings

MAX_BYTES = 2_000_000_000  # as many as a net of a federation may have weights for
SUFFIXES = (".safetensors", ".pt", ".pth")


def file_name(settings: Settings) -> str:
    """What the file is called in a kit and in the folders of nodes."""
    return f"weights{Path(str(settings.weights)).suffix}"


def read_for_kits(settings: Settings) -> bytes:
    """The content of the organiser's file, for all kits."""
    if settings.weights is None:
        raise SettingError(
            "with_weights: there are no weights to hand over; name their file: --weights net.safetensors."
        )
    path = Path(settings.weights)
    if path.stat().st_size > MAX_BYTES:
        raise SettingError(
            f"with_weights: {path} is larger than {MAX_BYTES:,} bytes; hand it over another way, to the same path."
        )
    content = path.read_bytes()
    check_digest(content, settings, f"weights = {str(path)!r}")
    return content


def check_digest(content: bytes, settings: Settings, where: str) -> None:
    """Refuse another content than the agreed one."""
    found = hashlib.blake2b(content, digest_size=16).hexdigest()
    if found != settings.weights_digest:
        raise DataError(
            f"{where} is not the file that was agreed on: its digest is {found}, and {settings.weights_digest} was "
            "agreed; ask the organiser for the kit again."
        )


def install(folder: Path, content: bytes, settings: Settings) -> None:
    """Write the file into a node's folder, unless it is there."""
    path = folder / file_name(settings)
    if not path.exists() or path.read_bytes() != content:
        write_secret(path, content)


class NodeWeights:
    """Where a node reads the initial weights from."""

    def __init__(self, content: bytes | None, folder: Path, settings: Settings) -> None:
        self.settings, self.folder = settings, folder
        self.place: tempfile.TemporaryDirectory[str] | None = None  # nothing is written to the folder before joining
        self.path: str | None = settings.weights
        if settings.weights is None:
            return
        if (folder / file_name(settings)).exists():
            self.path = str(folder / file_name(settings))
        elif content is not None:
            self.place = tempfile.TemporaryDirectory()
            self.path = str(Path(self.place.name) / file_name(settings))
            Path(self.path).write_bytes(content)

    def installed(self) -> str | None:
        """The path once the kit is in the node's folder; what was put elsewhere is removed."""
        if self.place is not None:
            self.place.cleanup()
            self.place, self.path = None, str(self.folder / file_name(self.settings))
        return self.path
