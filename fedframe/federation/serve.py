"""`fedframe federation serve`: keeps the SuperLink of a federation running, and reports who comes and goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedframe.errors import RunError
from fedframe.federation.folder import FederationFolder
from fedframe.network.flower.local_deployment import start_superlink
from fedframe.network.flower.superlink_client import SuperLinkClient
from fedframe.util.processes import ChildProcess, require_free_port, wait_for_port

DATABASE_COMPLETE = "superlink.whole"  # beside the database: its creation was not cut off
POLL_INTERVAL = 5.0  # seconds between two polls of who is connected
RESTART_DELAY = 3.0  # seconds before a SuperLink that ended is started again


def connect_superlink(folder: FederationFolder) -> SuperLinkClient:
    """The organiser's own client of the SuperLink."""
    ca, serve = (folder.keys / "ca.pem").read_bytes(), f"fedframe federation serve {folder.path}"
    return SuperLinkClient(f"127.0.0.1:{folder.agreement().port}", ca, folder.secret(), serve)


def serve(folder: FederationFolder, bind: str, notify: Callable[[str], None], stopping: threading.Event) -> None:
    """Run the SuperLink until `stopping` is set; if it ends by itself, start it again."""
    with folder.exclusive("serve", "serves"):
        require_free_port(bind, folder.agreement().port)
        while not stopping.is_set():
            try:
                serve_once(folder, bind, notify, stopping)
            except RunError as error:
                notify(f"{error} Starting it again in {RESTART_DELAY:g} s.")
                stopping.wait(RESTART_DELAY)


def serve_once(folder: FederationFolder, bind: str, notify: Callable[[str], None], stopping: threading.Event) -> None:
    """Start the SuperLink and watch it until it ends."""
    agreement = folder.agreement()
    discard_partial_database(folder.state)
    require_free_port(bind, agreement.port)
    child = start_superlink(folder.keys, bind, agreement.port, folder.state)
    try:
        wait_for_port(child, "127.0.0.1", agreement.port, stopping)
        if stopping.is_set():
            return
        superlink = connect_superlink(folder)
        try:
            register_members(folder, superlink)
            (folder.state / DATABASE_COMPLETE).touch()
            notify(f"The SuperLink listens at {bind}:{agreement.port}; waiting for {', '.join(agreement.members)}.")
            report_connections(child, superlink, notify, stopping)
        finally:
            superlink.close()
    finally:
        child.stop()


def discard_partial_database(state: Path) -> None:
    """Remove a database whose creation was cut off: Flower makes its tables in many steps, and cannot finish them."""
    if not (state / DATABASE_COMPLETE).exists():
        for path in state.glob("superlink.db*"):
            path.unlink()


def register_members(folder: FederationFolder, superlink: SuperLinkClient) -> None:
    """Register the members' keys, unless the database knows them already, and let nobody else in."""
    keys = folder.public_keys()
    known = superlink.nodes()
    for name, node in known.items():
        if name not in keys or not superlink.holds(node, keys[name]):  # it has left, or is another of that name
            superlink.unregister(node)
    for name, key in keys.items():
        if name not in known or not superlink.holds(known[name], key):
            superlink.register(name, key)


def report_connections(
    child: ChildProcess, superlink: SuperLinkClient, notify: Callable[[str], None], stopping: threading.Event
) -> None:
    """Report who comes and who goes."""
    online: set[str] = set()
    while not stopping.wait(POLL_INTERVAL):
        if not child.alive:
            raise RunError(f"The SuperLink {child.how_it_ended()} (see {child.log}).")
        try:
            now = {name for name, node in superlink.nodes().items() if node.status == "online"}
        except RunError:
            continue  # it lives and is busy: no reason to end it
        stamp = time.strftime("%H:%M:%S")
        for name in sorted(now - online):
            notify(f"{stamp} {name} is connected.")
        for name in sorted(online - now):
            notify(f"{stamp} {name} is gone.")
        online = now
