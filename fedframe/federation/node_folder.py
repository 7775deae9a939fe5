"""A node's folder: whose it is, and whether it can be used; found out before anything is written into it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedframe.errors import FedframeError, SettingError
from fedframe.federation.agreement import NAME, Agreement
from fedframe.network.certificates import public_of

if TYPE_CHECKING:
    from fedframe.federation.kit import Kit


def check_place(kit: Kit, folder: Path) -> None:
    """Refuse a folder that cannot be this node's."""
    with in_words(kit, folder):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{shown(there)} is a file")
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        check_owner(kit, folder)


def check_owner(kit: Kit, folder: Path) -> None:
    """Refuse the folder of another node: its key may be the only copy, and its masks and noise are its own.

    The key says whose a folder is. Where there is none, or one that is damaged, the rest of the kit does.
    """
    there = {name: (folder / name).read_bytes() for name in kit.contents if (folder / name).exists()}
    key = public_of(there.pop("node.key", b""))
    if key is not None:
        mine, what = key == public_of(kit.key), "key is another"
    else:
        mine, what = there.items() <= kit.contents.items(), "files are others"
    if not mine:
        raise SettingError(
            f"{shown(folder)} belongs to {owner(there)} (its {what} than the kit's); "
            f"use --out {shown(free_beside(folder))}."
        )


def owner(files: Mapping[str, bytes]) -> str:
    """Whose folder it is, as far as its files say."""
    try:
        federation = f"the federation {Agreement.read(files['federation.yaml'].decode(), '').name}"
    except (KeyError, UnicodeDecodeError, FedframeError):
        federation = "another federation"
    name = files.get("node.txt", b"").decode(errors="replace").strip()
    return f"the node {name} of {federation}" if NAME.fullmatch(name) else federation


@contextlib.contextmanager
def in_words(kit: Kit, folder: Path) -> Iterator[None]:
    """What goes wrong with the files of a node's folder, in one sentence."""
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"out = {shown(folder)}: cannot be this node's folder ({error.strerror}); choose one that you can write, "
            f"such as --out ~/{kit.name}-node."
        ) from error


def free_beside(folder: Path) -> Path:
    """A folder that is not there yet: the same name with a number."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in names if not path.exists())


def shown(path: Path) -> Path:
    """A path as one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path
