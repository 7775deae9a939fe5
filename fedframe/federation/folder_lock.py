"""A node's folder is one process's: two would write the same files, and the SuperLink lets in only one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from fedframe.errors import RunError
from fedframe.federation.folder import locked

LOCK = "node.pid"  # what counts is the lock on it; the number in it is for people


def hold(folder: Path) -> IO[str]:
    """Take a node's folder until the file is closed or this process ends, however it does."""
    file = (folder / LOCK).open("a+")
    if not locked(file):
        file.seek(0)
        who = file.read().strip()
        file.close()
        raise RunError(
            f"Process {who or 'of somebody else'} takes part with {folder} already; leave it to that one, or stop it "
            "there (Ctrl-C) and join again."
        )
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
