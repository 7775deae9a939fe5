"""A node's kit: the CA certificate, that node's private key, and the agreement; no other key.

It is handed over as an archive. A node that has joined keeps it in its folder, and needs the archive no more.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from fedframe.errors import DataError
from fedframe.federation import kit_weights
from fedframe.federation.agreement import Agreement
from fedframe.federation.node_folder import check_owner
from fedframe.network.certificates import is_certificate, public_key_of, write_secret
from fedframe.util.plain_files import refuse_pipe

FILES = ("ca.pem", "node.key", "federation.yaml", "node.txt", "README.txt")
NEEDED = FILES[:4]
MAX_FILE_BYTES = 1 << 20  # of one file in a kit
KIT = "a kit is the archive that the organiser has handed over, named after the node, such as north-kit.zip."
AGAIN = "ask the organiser for the kit again, such as north-kit.zip."
# What zipfile raises for archives that are damaged in one place or another.
DAMAGE = (
    KeyError, ValueError, EOFError, NotImplementedError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
README = """This is the kit of the node "{name}" of the federation "{federation}".

It holds this node's private key: whoever has it can join in your name. Keep it as you keep a password. Your data never
leave your machine; docs/federation/trust.md says what does.

    pip install '.[flower]'          (in a clone of Fedframe, of the version that the organiser has)
    fedframe federation join {name}-kit.zip --data imagefolder:scans/

From then on the folder {name}-node holds what is in this archive: delete the archive, guard the folder, join with it:

    fedframe federation join {name}-node --data imagefolder:scans/

The machine needs a way out to {address} (TCP, TLS inside); nothing needs to reach it from outside.
"""


@dataclass(frozen=True)
class Kit:
    """What a node needs to take part."""

    name: str
    agreement: Agreement
    ca: bytes
    key: bytes
    weights: bytes | None = None  # the file of initial weights, if the kit brings it

    @property
    def number(self) -> int:
        """The node's client number."""
        return self.agreement.members.index(self.name)

    @property
    def contents(self) -> dict[str, bytes]:
        """The files that a node needs."""
        return dict(zip(NEEDED, (self.ca, self.key, self.agreement.text().encode(), self.name.encode()), strict=True))

    def write(self, path: Path) -> None:
        """Write the archive, readable by its owner only."""
        readme = README.format(name=self.name, federation=self.agreement.name, address=self.agreement.address)
        block = io.BytesIO()
        with zipfile.ZipFile(block, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {**self.contents, "README.txt": readme.encode()}.items():
                info = zipfile.ZipInfo(name)
                info.external_attr = 0o600 << 16
                archive.writestr(info, content)
            if self.weights is not None:  # stored as it is: weights do not become smaller
                info = zipfile.ZipInfo(kit_weights.file_name(self.agreement.settings))
                info.external_attr = 0o600 << 16
                archive.writestr(info, self.weights, zipfile.ZIP_STORED)
        write_secret(path, block.getvalue())

    def install(self, folder: Path) -> None:
        """Write it into the node's folder, which must be this node's already or nobody's."""
        check_owner(self, folder)
        for name, content in self.contents.items():
            path = folder / name
            if not path.exists() or path.read_bytes() != content:
                write_secret(path, content)
        if self.weights is not None:
            kit_weights.install(folder, self.weights, self.agreement.settings)

    @classmethod
    def read(cls, path: Path) -> Kit:
        """Read a kit from an archive or from the folder of a node; no file is read but those that a kit has."""
        try:
            found = cls._read_files(path)
        except FileNotFoundError as error:
            if path.is_dir():
                raise DataError(f"{path} is no folder of a node: it has no {Path(error.filename).name}.") from error
            raise DataError(f"There is no kit {path}; {KIT}") from error
        except OSError as error:
            raise DataError(f"Cannot read {path} ({error.strerror or error}); {KIT}") from error
        except DAMAGE as error:
            raise DataError(f"The kit {path} is damaged ({error}); {AGAIN}") from error
        if not is_certificate(found["ca.pem"]):
            raise DataError(f"{path}: ca.pem is no certificate; {AGAIN}")
        if public_key_of(found["node.key"]) is None:
            raise DataError(f"{path}: node.key is no key of a node; {AGAIN}")
        agreement = Agreement.read(found["federation.yaml"].decode(errors="replace"), f"{path}: federation.yaml")
        name = found["node.txt"].decode(errors="replace").strip()
        if name not in agreement.members:
            raise DataError(f"{path} is the kit of {name[:60]!r}, which is no member of its federation.")
        return cls(name, agreement, found["ca.pem"], found["node.key"], cls._read_weights(path, agreement))

    @classmethod
    def _read_weights(cls, path: Path, agreement: Agreement) -> bytes | None:
        settings = agreement.settings
        if path.is_dir() or settings.weights is None:
            return None
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                name = kit_weights.file_name(settings)
                if name not in archive.namelist():
                    return None
                content = cls._read_member(archive, name, kit_weights.MAX_BYTES)
        except DAMAGE as error:
            raise DataError(f"The kit {path} is damaged ({error}); {AGAIN}") from error
        kit_weights.check_digest(content, settings, f"{path}: {name}")
        return content

    @classmethod
    def _read_files(cls, path: Path) -> dict[str, bytes]:
        for each in [path / name for name in NEEDED] if path.is_dir() else [path]:
            refuse_pipe(each)
        if path.is_dir():
            return {name: (path / name).read_bytes() for name in NEEDED}
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise DataError(f"{path} is no kit, for it is no zip archive; {KIT}")
        with zipfile.ZipFile(path) as archive:
            if missing := sorted(set(NEEDED) - set(archive.namelist())):
                raise DataError(f"{path} is no kit, for it has no {missing[0]}; {KIT}")
            return {name: cls._read_member(archive, name) for name in NEEDED}

    @staticmethod
    def _read_member(archive: zipfile.ZipFile, name: str, most: int = MAX_FILE_BYTES) -> bytes:
        if archive.getinfo(name).file_size > most:
            raise DataError(f"The kit's {name} is larger than {most:,} bytes.")
        with archive.open(name) as file:
            return file.read(most)
