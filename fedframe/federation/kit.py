"""A node's kit: an archive with the CA certificate, that node's private key, and the agreement; no other key."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from fedframe.errors import DataError
from fedframe.federation.agreement import Agreement
from fedframe.federation.certificates import write_secret

FILES = ("ca.pem", "node.key", "federation.yaml", "node.txt", "README.txt")
MOST = 1 << 20  # bytes of one file in a kit
README = """This is the kit of the node "{name}" of the federation "{federation}".

It holds this node's private key: whoever has it can join in your name. Keep it as you keep a password, and delete
the archive once you have joined. Your data never leave your machine; docs/federation.md says what does.

    pip install 'fedframe[flower]'
    fedframe federation join {name}-kit.zip --data imagefolder:scans/

The machine needs a way out to {address} (TCP, TLS inside); nothing needs to reach it from outside.
"""


@dataclass(frozen=True)
class Kit:
    """What a node needs to take part."""

    name: str
    agreement: Agreement
    ca: bytes
    key: bytes

    @property
    def number(self) -> int:
        """The node's client number."""
        return self.agreement.members.index(self.name)

    def write(self, path: Path) -> None:
        """Write the archive, for its owner's eyes only."""
        readme = README.format(name=self.name, federation=self.agreement.name, address=self.agreement.address)
        contents = (self.ca, self.key, self.agreement.text().encode(), self.name.encode(), readme.encode())
        block = io.BytesIO()
        with zipfile.ZipFile(block, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in zip(FILES, contents, strict=True):
                info = zipfile.ZipInfo(name)
                info.external_attr = 0o600 << 16
                archive.writestr(info, content)
        write_secret(path, block.getvalue())

    @classmethod
    def read(cls, path: Path) -> Kit:
        """Read a kit; nothing is unpacked but the files that a kit has."""
        try:
            with zipfile.ZipFile(path) as archive:
                found = {name: cls._member(archive, name) for name in FILES[:4]}
        except FileNotFoundError as error:
            raise DataError(f"There is no kit {path}.") from error
        except (OSError, KeyError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            raise DataError(f"{path} is no kit of a Fedframe federation: {error}.") from error
        agreement = Agreement.read(found["federation.yaml"].decode(errors="replace"), f"{path}: federation.yaml")
        name = found["node.txt"].decode(errors="replace").strip()
        if name not in agreement.members:
            raise DataError(f"{path} is the kit of {name[:60]!r}, which is no member of its federation.")
        return cls(name, agreement, found["ca.pem"], found["node.key"])

    @staticmethod
    def _member(archive: zipfile.ZipFile, name: str) -> bytes:
        if archive.getinfo(name).file_size > MOST:
            raise DataError(f"The kit's {name} is larger than {MOST:,} bytes.")
        with archive.open(name) as file:
            return file.read(MOST)
