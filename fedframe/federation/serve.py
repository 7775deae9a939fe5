"""`fedframe federation serve`: the SuperLink of a federation, kept running, with a word on who comes and goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedframe.errors import RunError
from fedframe.federation.folder import FederationFolder
from fedframe.network.flower.local_deployment import start_superlink
from fedframe.network.flower.superlink_client import Link
from fedframe.util.processes import Child, need_port, wait_for_port

WHOLE = "superlink.whole"  # beside the database: it was made to its end
LOOK = 5.0  # seconds between two looks at who is connected
PAUSE = 3.0  # seconds before a SuperLink that ended is started again


def link_to(folder: FederationFolder) -> Link:
    """The organiser's own line to the SuperLink."""
    ca, serve = (folder.keys / "ca.pem").read_bytes(), f"fedframe federation serve {folder.path}"
    return Link(f"127.0.0.1:{folder.agreement().port}", ca, folder.secret(), serve)


def serve(folder: FederationFolder, bind: str, say: Callable[[str], None], over: threading.Event) -> None:
    """Run the SuperLink until `over` is set; if it ends by itself, start it again."""
    with folder.alone("serve", "serves"):
        need_port(bind, folder.agreement().port)
        while not over.is_set():
            try:
                serve_once(folder, bind, say, over)
            except RunError as error:
                say(f"{error} Starting it again in {PAUSE:g} s.")
                over.wait(PAUSE)


def serve_once(folder: FederationFolder, bind: str, say: Callable[[str], None], over: threading.Event) -> None:
    """One life of the SuperLink."""
    agreement = folder.agreement()
    discard_half(folder.state)
    need_port(bind, agreement.port)
    child = start_superlink(folder.keys, bind, agreement.port, folder.state)
    try:
        wait_for_port(child, "127.0.0.1", agreement.port, over)
        if over.is_set():
            return
        link = link_to(folder)
        try:
            register(folder, link)
            (folder.state / WHOLE).touch()
            say(f"The SuperLink listens at {bind}:{agreement.port}; waiting for {', '.join(agreement.members)}.")
            watch(child, link, say, over)
        finally:
            link.close()
    finally:
        child.end()


def discard_half(state: Path) -> None:
    """Remove a database whose first start was cut off: Flower makes its tables in many steps, and trips over half."""
    if not (state / WHOLE).exists():
        for path in state.glob("superlink.db*"):
            path.unlink()


def register(folder: FederationFolder, link: Link) -> None:
    """Let the members' keys in; a database that knows them already is left alone."""
    known = link.nodes()
    for name, key in folder.public_keys().items():
        if name not in known:
            link.register(name, key)


def watch(child: Child, link: Link, say: Callable[[str], None], over: threading.Event) -> None:
    """Say who comes and who goes."""
    online: set[str] = set()
    while not over.wait(LOOK):
        if not child.alive:
            raise RunError(f"The SuperLink {child.ending()} (see {child.log}).")
        try:
            now = {name for name, node in link.nodes().items() if node.status == "online"}
        except RunError:
            continue  # it lives and is busy: no reason to end it
        stamp = time.strftime("%H:%M:%S")
        for name in sorted(now - online):
            say(f"{stamp} {name} is connected.")
        for name in sorted(online - now):
            say(f"{stamp} {name} is gone.")
        online = now
