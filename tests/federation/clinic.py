"""A federation whose members answer in this process, for tests of what its run folders are good for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedframe.network.engine as engine_module
from fedframe.data.spec import DataSchema
from fedframe.federation import start
from fedframe.federation.create import form_from_description, new_federation
from fedframe.federation.folder import FederationFolder
from fedframe.federation.join import Membership
from fedframe.federation.kit import Kit
from fedframe.federation.own_results import train_alone
from fedframe.jobs.gather import gather
from tests.network.in_process import Clock, InProcessTransport

NAMES = ("north", "south", "west")
CLASSES = ("a", "b", "c")


def write_arrays(path: Path, seed: int, count: int = 60) -> str:
    """Three classes that are easy to tell apart, as a data source."""
    draw = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = np.random.default_rng(0).normal(0, 3, (3, 6))[y] + draw.normal(0, 1, (count, 6))
    np.savez(path, x=x.astype(np.float32), y=np.array(CLASSES)[y])
    return f"npz:{path}"


class Handled:
    """A member as the transport calls it, with all that a real node writes down on the way."""

    def __init__(self, member: Membership) -> None:
        self.member = member
        self.answer = member.request_handler(lambda text: None)

    def handle(self, payload: bytes) -> tuple[None, None, bytes]:
        return None, None, self.answer(payload)


def make_clinic(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tell: Sequence[str] = (),
    form: DataSchema | None = None,
    write: Callable[[Path, int], str] = write_arrays,
    with_weights: bool = False,
    **settings: Any,
) -> tuple[FederationFolder, InProcessTransport]:
    """The federation, and the transport that its organiser gets; members can be put into `transport.away`."""
    asked = gather({"method": "fedavg", "model": "mlp:8", "rounds": 3, "epochs": 1, **settings}, None)
    form = form or form_from_description("a,b,c", "6", "0", "1")
    made = new_federation(folder / "clinic", NAMES, ["127.0.0.1"], 9000, form, asked, with_weights)
    nodes = {}
    for number, name in enumerate(NAMES):
        kit = Kit.read(made.path / "kits" / f"{name}-kit.zip")
        home = folder / f"{name}-node"
        home.mkdir()
        kit.install(home)
        data = write(folder / f"{name}.npz", number + 1)
        member = Membership(kit, data, home, None, None, tell_gain=name in tell)
        if name in tell:
            train_alone(member, progress=False)
        nodes[name] = Handled(member)
    transport = InProcessTransport(nodes)  # type: ignore[arg-type]
    monkeypatch.setattr(engine_module, "time", Clock())
    monkeypatch.setattr(start, "connect_superlink", lambda folder: None)
    monkeypatch.setattr(start, "SuperLinkTransport", lambda link: transport)
    return made, transport
