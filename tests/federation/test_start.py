"""`federation start` without a network: who is asked, and what is refused, before a training begins or goes on."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedframe.network.engine as engine_module
from fedframe.errors import RunError, SettingError
from fedframe.federation import start
from fedframe.federation.create import form_from_description, new_federation
from fedframe.federation.folder import FederationFolder
from fedframe.federation.join import Membership
from fedframe.federation.kit import Kit
from fedframe.jobs.gather import gather
from fedframe.network import node
from fedframe.network.flower.environment import require_packages
from fedframe.network.node import NodeRuntime
from fedframe.runs.session import Session
from tests.network.in_process import Clock, InProcessTransport

MEMBERS = ["north", "south"]


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationFolder:
    """A federation whose members answer in this process."""
    draw = np.random.default_rng(0)
    form = form_from_description("a,b", "6", "0", "1")
    asked = gather({"method": "fedavg", "model": "mlp:8", "rounds": 3, "epochs": 1}, None)
    made = new_federation(tmp_path / "clinic", MEMBERS, ["127.0.0.1"], 9000, form, asked)
    np.savez(
        tmp_path / "own.npz", x=draw.normal(0, 1, (40, 6)).astype(np.float32), y=np.array(["a", "b"])[np.arange(40) % 2]
    )
    nodes = {}
    for name in MEMBERS:
        kit = Kit.read(made.path / "kits" / f"{name}-kit.zip")
        member = Membership(kit, f"npz:{tmp_path / 'own.npz'}", tmp_path / name, None, None)
        nodes[name] = NodeRuntime(member.make_job, [kit.number])
    monkeypatch.setattr(engine_module, "time", Clock())
    monkeypatch.setattr(start, "connect_superlink", lambda folder: None)
    monkeypatch.setattr(start, "SuperLinkTransport", lambda link: InProcessTransport(nodes))
    return made


def cut_off(clinic: FederationFolder, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """A training that is stopped after its first round."""

    def stopped(self: Any, record: Any) -> None:
        original(self, record)
        raise KeyboardInterrupt

    original = Session.finish_round
    with monkeypatch.context() as patch:
        patch.setattr(Session, "finish_round", stopped)
        with pytest.raises(KeyboardInterrupt):
            start.start(clinic, progress=False, **options)


@pytest.mark.slow
def test_a_training_goes_on_after_its_last_round(clinic: FederationFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(clinic, monkeypatch)
    start.start(clinic, progress=False)
    assert [path.name for path in clinic.runs.iterdir()] == ["1"]
    assert len((clinic.runs / "1" / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("what", ["version", "torch"])
@pytest.mark.parametrize("resumed", [False, True])
def test_another_program_at_a_node_is_refused(
    clinic: FederationFolder, monkeypatch: pytest.MonkeyPatch, what: str, resumed: bool
) -> None:
    if resumed:
        cut_off(clinic, monkeypatch)
    here = node.versions()
    monkeypatch.setattr(node, "versions", lambda: {**here, what: "0.0.7"})  # the nodes' side only
    with pytest.raises(RunError, match=r"has \S+ '0.0.7' and the server '\d"):
        start.start(clinic, progress=False)


@pytest.mark.slow
def test_test_data_cannot_change_in_the_middle(
    clinic: FederationFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = f"npz:{tmp_path / 'own.npz'}"
    cut_off(clinic, monkeypatch, test_data=data)
    with pytest.raises(SettingError, match=r"test_data = 'npz:other.npz'.*--new"):
        start.start(clinic, progress=False, test_data="npz:other.npz")
    start.start(clinic, progress=False, test_data=data)  # the same once more is what it goes on with


def test_another_version_of_flower_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    require_packages("flwr")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.40.0")
    with pytest.raises(SettingError, match=r"needs flwr 1\.41\.0, and 1\.40\.0 is installed"):
        require_packages("flwr")


@pytest.mark.slow
def test_a_finished_training_is_not_repeated_unless_that_is_said(
    clinic: FederationFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    first = start.start(clinic, progress=False)
    before = (first.folder / "summary.json").stat().st_mtime_ns
    again = start.start(clinic)
    assert again.folder == first.folder
    assert again.scores == first.scores
    assert (first.folder / "summary.json").stat().st_mtime_ns == before
    said = " ".join(capsys.readouterr().out.split())
    assert "is finished" in said
    assert f"federation start {clinic.path} --new" in said
    assert not (clinic.runs / "2").exists()
    assert start.start(clinic, new=True, progress=False).folder == clinic.runs / "2"
