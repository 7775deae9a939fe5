"""A node's folder: whose it is and whether it can be used, checked before anything is written into it, and its lock.

One process uses it at a time: two would write the same files, and the SuperLink lets in only one.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from fedframe.errors import FedframeError, RunError, SettingError
from fedframe.federation.agreement import NAME, Agreement
from fedframe.network.certificates import public_key_of
from fedframe.util.processes import lock_with_pid, read_pid

if TYPE_CHECKING:
    from fedframe.federation.kit import Kit


LOCK = "node.pid"  # what counts is the lock on it; the number in it is for people


def lock_node_folder(folder: Path) -> FileLock:
    """Take a node's folder until the lock is released or this process ends, however it does."""
    try:
        return lock_with_pid(folder / LOCK)
    except Timeout as error:
        raise RunError(
            f"Process {read_pid(folder / LOCK) or 'of someone else'} takes part with {folder} already; leave it to "
            "that one, or stop it there (Ctrl-C) and join again."
        ) from error


def check_node_folder(kit: Kit, folder: Path) -> None:
    """Refuse a folder that cannot be this node's."""
    with explain_os_errors(kit, folder):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{display_path(existing)} is a file")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        check_owner(kit, folder)


def check_owner(kit: Kit, folder: Path) -> None:
    """Refuse the folder of another node: its key may be the only copy, and its masks and noise are its own.

    The key says whose a folder is. Where there is none, or one that is damaged, the rest of the kit does.
    """
    found = {name: (folder / name).read_bytes() for name in kit.contents if (folder / name).exists()}
    key = public_key_of(found.pop("node.key", b""))
    if key is not None:
        mine, what = key == public_key_of(kit.key), "key is another"
    else:
        mine, what = found.items() <= kit.contents.items(), "files are others"
    if not mine:
        raise SettingError(
            f"{display_path(folder)} belongs to {describe_owner(found)} (its {what} than the kit's); "
            f"use --out {display_path(unused_sibling(folder))}."
        )


def describe_owner(files: Mapping[str, bytes]) -> str:
    """Whose folder it is, as far as its files show."""
    try:
        federation = f"the federation {Agreement.read(files['federation.yaml'].decode(), '').name}"
    except (KeyError, UnicodeDecodeError, FedframeError):
        federation = "another federation"
    name = files.get("node.txt", b"").decode(errors="replace").strip()
    return f"the node {name} of {federation}" if NAME.fullmatch(name) else federation


@contextlib.contextmanager
def explain_os_errors(kit: Kit, folder: Path) -> Iterator[None]:
    """Turn errors of the file system about a node's folder into one sentence."""
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"out = {display_path(folder)}: cannot be this node's folder ({error.strerror}); choose one that you can "
            f"write, such as --out ~/{kit.name}-node."
        ) from error


def unused_sibling(folder: Path) -> Path:
    """A folder beside it that does not exist yet: the same name with a number."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in names if not path.exists())


def display_path(path: Path) -> Path:
    """A path as one would type it in the current folder."""
    current = Path.cwd()
    return path.relative_to(current) if path.is_relative_to(current) and path != current else path
