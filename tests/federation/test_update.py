"""A federation whose model is fitted from sums: nodes that come late, nodes that are forgotten."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

import fedframe
from fedframe.errors import RunError, SettingError
from fedframe.federation import update as update_module
from fedframe.federation.folder import FederationFolder
from fedframe.federation.start import start
from fedframe.federation.update import update
from fedframe.runs.join_forget import forget
from tests.federation.clinic import make_clinic
from tests.helpers import Recorder, same_file
from tests.network.in_process import InProcessTransport

Clinic = tuple[FederationFolder, InProcessTransport]


def sums_clinic(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Clinic:
    given = {"method": "analytic", "model": "raw", "rounds": 0, "set": {"analytic": {"width": 20}}, **settings}
    made, transport = make_clinic(folder, monkeypatch, **given)
    monkeypatch.setattr(update_module, "connect_superlink", lambda folder: None)
    monkeypatch.setattr(update_module, "SuperLinkTransport", lambda link: transport)
    return made, transport


def model(folder: FederationFolder, run: int = 1) -> Path:
    return folder.runs / str(run) / "model.safetensors"


def trained(clinic: Clinic, *without: str, test_data: str | None = None) -> FederationFolder:
    """A training in which these nodes are away."""
    folder, transport = clinic
    transport.away = set(without)
    start(folder, without=without, test_data=test_data, progress=False)
    transport.away = set()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("part", [{"width": 20}, {"width": 20, "map": "data", "balance": 0.5}], ids=str)
def test_a_node_that_comes_late_makes_the_model_the_one_that_all_would_have_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: dict[str, Any]
) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "all").mkdir()
    clinic = sums_clinic(tmp_path / "late", monkeypatch, set={"analytic": part})
    late, display = trained(clinic, "west"), Recorder()
    summary = json.loads((late.runs / "1" / "summary.json").read_text())
    assert (summary["clients"], summary["scores"]["client"]["clients"]) == (2, 2)
    update(late, progress=display)
    whole = trained(sums_clinic(tmp_path / "all", monkeypatch, set={"analytic": part}))
    assert same_file(model(late), model(whole))
    assert any("Added west" in note for note in display.notes)
    seen = r"The shared model: client [\d.]+ % over 3 clients, before [\d.]+ % over 2 clients"
    assert any(re.match(seen, note) for note in display.notes)
    summary = json.loads((late.runs / "1" / "summary.json").read_text())
    assert (summary["clients"], summary["scores"]["personal"]["clients"]) == (3, 3)
    assert [(each["what"], each["client"]) for each in summary["changes"]] == [("join", "west")]
    assert len(list((tmp_path / "late" / "west-node" / "runs").glob("*/model.safetensors"))) == 1


@pytest.mark.slow
def test_an_update_while_the_late_node_is_still_away_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic = sums_clinic(tmp_path, monkeypatch)
    folder = trained(clinic, "west")
    before = model(folder).read_bytes()
    clinic[1].away = {"west"}
    update(folder, progress=False)
    assert model(folder).read_bytes() == before


@pytest.mark.slow
def test_two_messages_per_node_with_features_from_the_data_and_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for knows, messages in (("fixed", 1), ("data", 2)):
        (tmp_path / knows).mkdir()
        clinic = sums_clinic(tmp_path / knows, monkeypatch, set={"analytic": {"width": 20, "map": knows}})
        folder = trained(clinic)
        assert len(list((folder.runs / "1" / "sums").iterdir())) == 3 * messages


# -- forget ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_an_organiser_forgets_without_the_nodes_and_sends_them_the_model_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "rest"):
        (tmp_path / name).mkdir()
    rest = trained(sums_clinic(tmp_path / "rest", monkeypatch), "south")
    clinic = sums_clinic(tmp_path / "whole", monkeypatch)
    whole = trained(clinic, test_data=f"npz:{tmp_path / 'rest' / 'north.npz'}")
    clinic[1].away = {"north", "south", "west"}  # nobody is needed
    display = Recorder()
    forget(whole.runs / "1", "south", progress=display)
    assert same_file(model(whole), model(rest))
    assert any("send them the new one: fedframe federation update" in note for note in display.notes)
    summary = json.loads((whole.runs / "1" / "summary.json").read_text())
    assert summary["scores"]["generic"]["final"] is not None
    assert summary["scores"]["client"]["final"] is None
    assert not list((whole.runs / "1" / "sums").glob("000001*"))
    clinic[1].away = set()
    clinic[1].sent.clear()
    update(whole, progress=False)
    assert same_file(model(whole), model(rest))
    assert "south" not in {node for node, _ in clinic[1].sent}
    summary = json.loads((whole.runs / "1" / "summary.json").read_text())
    assert summary["scores"]["client"]["clients"] == 2
    for name in ("north", "west"):
        (own,) = (tmp_path / "whole" / f"{name}-node" / "runs").glob("*/model.safetensors")
        x = torch.randn(5, 6)
        found = [fedframe.Predictor.load(path.parent).probabilities(x) for path in (own, model(rest))]
        assert torch.equal(*found)


@pytest.mark.slow
def test_features_from_the_data_need_the_nodes_to_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("whole", "rest"):
        (tmp_path / name).mkdir()
    part = {"analytic": {"width": 20, "map": "data"}}
    rest = trained(sums_clinic(tmp_path / "rest", monkeypatch, set=part), "south")
    whole = trained(sums_clinic(tmp_path / "whole", monkeypatch, set=part))
    before = model(whole).read_bytes()
    with pytest.raises(RunError, match=r"federation update .* --forget south"):
        forget(whole.runs / "1", "south", progress=False)
    assert model(whole).read_bytes() == before
    update(whole, forget="south", progress=False)
    assert same_file(model(whole), model(rest))


@pytest.mark.slow
def test_a_node_that_must_send_its_sums_again_and_is_away_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic = sums_clinic(tmp_path, monkeypatch, set={"analytic": {"width": 20, "map": "data"}}, min_clients=1)
    folder = trained(clinic)
    before = model(folder).read_bytes()
    clinic[1].away = {"west"}
    with pytest.raises(RunError, match="west has not sent its sums"):
        update(folder, forget="south", progress=False)
    assert model(folder).read_bytes() == before


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("where", ["server", "node"])
def test_a_private_release_gets_no_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    pytest.importorskip("dp_accounting")
    private = {"privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_at": where, "weighting": "uniform"}
    folder = trained(sums_clinic(tmp_path, monkeypatch, **private))
    before = model(folder).read_bytes()
    with pytest.raises(SettingError, match="one private release"):
        update(folder)
    with pytest.raises(SettingError, match="one private release"):
        update(folder, forget="south")
    with pytest.raises(SettingError, match="one private release"):
        forget(model(folder).parent, 1)
    assert model(folder).read_bytes() == before


@pytest.mark.slow
def test_with_secure_aggregation_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = sums_clinic(tmp_path, monkeypatch, secure=True)
    with pytest.raises(SettingError, match="would show its own"):
        start(made, without=["west"], progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "without", "sentence"),
    [
        ({"method": "fedavg", "model": "mlp:8", "rounds": 1, "set": {}}, ["west"], "trains in rounds"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "weighting": "uniform"}, ["west"], "one private release"),
        ({}, ["nowhere"], "no node of this federation"),
        ({}, ["north", "south", "west"], "no node is left"),
    ],
)
def test_nodes_that_could_not_be_added_later_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], without: list[str], sentence: str
) -> None:
    made, _ = sums_clinic(tmp_path, monkeypatch, **given)
    with pytest.raises(SettingError, match=sentence):
        start(made, without=without, progress=False)
