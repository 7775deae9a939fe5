"""A local deployment whose processes end: the run ends too and says which, instead of waiting for nobody."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedframe.errors import RunError
from fedframe.network.flower.local_deployment import LocalTransport


@pytest.mark.parametrize(("place", "who"), [("node-2", "node-2"), (".", "the SuperLink")])
@pytest.mark.parametrize("asked", ["nodes", "collect"])
def test_a_process_that_has_ended_ends_the_run_by_name(tmp_path: Path, place: str, who: str, asked: str) -> None:
    transport = LocalTransport(tmp_path)
    here: Any = SimpleNamespace(alive=True, log=tmp_path / "node-1" / "log.txt")
    gone: Any = SimpleNamespace(
        alive=False, log=tmp_path / place / "log.txt", how_it_ended=lambda: "was killed by signal 9"
    )
    transport.children = [here, gone]
    with pytest.raises(RunError, match=f"The process of {who} was killed by signal 9 .see .*log.txt"):
        transport.nodes() if asked == "nodes" else transport.collect({})
