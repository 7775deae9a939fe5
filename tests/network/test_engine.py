"""Clients at nodes that have only their own data: the same bits as one process with all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedframe.errors import RunError
from fedframe.network.engine import check_hello
from fedframe.network.node import template_digest
from fedframe.runs.folder import RunFolder
from fedframe.runs.session import execute
from tests.helpers import Recorder, comparable_scores, same_file
from tests.network.in_process import make, remote_engine

METHODS = [
    "fedavg",
    "scaffold",
    "fedetf",
    "fedloge",
    "fedrane",
    "spherefed",
    "fedrep",
    "fedavg+ccvr",
    "feddyn",
    "spherefed+average",
    "fedlc",
    "feddecorr",
    "fedntd",
    "feduv",
    "feddr_plus",
    "fedgela",
    "creff",
    "fedgrab",
    "fedgloss",
]


def run_both(method: str, tmp_path: Path, **settings: Any) -> tuple[RunFolder, RunFolder]:
    """The same run in this process, and at three nodes."""
    job, here = make(method, tmp_path / "here", **settings)
    execute(job, here, Recorder())
    job, there = make(method, tmp_path / "there", **settings)
    execute(job, there, Recorder(), lambda job, note: remote_engine(job, tmp_path / "nodes"))
    return here, there


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_nodes_give_the_same_bits_and_scores_as_one_process(tmp_path: Path, method: str) -> None:
    here, there = run_both(method, tmp_path)
    assert same_file(here.path / "model.safetensors", there.path / "model.safetensors")
    assert comparable_scores(here.path) == comparable_scores(there.path)
    costs = ("seconds", "late")
    for one, other in zip(here.metrics(), there.metrics(), strict=True):
        assert {k: v for k, v in one.items() if k not in costs} == {k: v for k, v in other.items() if k not in costs}


@pytest.mark.parametrize("sent", [None, "0" * 32])
def test_a_node_that_would_send_other_tensors_is_refused_before_the_first_round(
    tmp_path: Path, sent: str | None
) -> None:
    job, _ = make("spherefed", tmp_path / "run")
    engine = remote_engine(job, tmp_path / "nodes")
    replies = engine.hello(4)
    check_hello(job, replies, template_digest(job))
    numbers = {name: value for name, value in replies[1].numbers.items() if name != "uploads"}
    replies[1] = replace(replies[1], numbers=numbers if sent is None else {**numbers, "uploads": sent})
    with pytest.raises(RunError, match="1 would send other tensors than the server expects: install the same Fedframe"):
        check_hello(job, replies, template_digest(job))
