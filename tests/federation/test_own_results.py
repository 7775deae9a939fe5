"""What a node knows of itself after a run, and what it tells of its gain only if it chose to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedframe
from fedframe.core.node_gain import gain_numbers, read_gain
from fedframe.data.new_client import load_new_client
from fedframe.errors import DataError
from fedframe.experiments.gain import gain
from fedframe.federation import start
from fedframe.federation.join import Membership
from fedframe.federation.kit import Kit
from fedframe.federation.own_results import predictions_alone, train_alone
from fedframe.report.page.build import write_page
from fedframe.runs.gain import lines_of
from fedframe.util.files import read_json
from tests.federation.clinic import NAMES, make_clinic, write_arrays


def node_run(folder: Path, name: str) -> Path:
    (found,) = (folder / f"{name}-node" / "runs").iterdir()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_node_tells_its_gain_only_if_it_chose_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch, tell=("north",), secure=secure)
    start.start(made, progress=False)
    run = made.runs / "1"
    rows = {row["client"]: row for row in read_json(run / "gain.json")["clients"]}
    assert set(rows) == set(NAMES)
    mine = read_json(node_run(tmp_path, "north") / "gain.json")["clients"][0]
    for what in ("alone", "gain"):
        for end in ("value", "low", "high"):
            assert rows["north"][what][end] == mine[what][end]
    assert mine["paired"]
    assert mine["verdict"] == rows["north"]["verdict"]
    assert rows["south"]["gain"] is None
    assert rows["west"]["alone"] is None
    if secure:  # only sums over the nodes are known, but for what a node tells
        assert rows["south"]["shared"] is None
    else:
        assert rows["south"]["shared"]["value"] == read_json(run / "client_scores.json")["client"][1]
    text = (tmp_path / "north-node/leaves.log").read_text()
    assert f"gain_value={mine['gain']['value']}" in text
    assert "gain_value" not in (tmp_path / "south-node/leaves.log").read_text()
    assert not (node_run(tmp_path, "south") / "gain.json").exists()
    assert "2 clients have not said" in lines_of(gain(run))[-1]  # and asking again loses nothing
    assert read_json(run / "gain.json")["clients"][0]["gain"] is not None


@pytest.mark.slow
def test_a_node_has_the_scores_that_the_organiser_has_of_it_and_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    start.start(made, progress=False)
    table = read_json(made.runs / "1/client_scores.json")
    for place, name in enumerate(NAMES):
        folder = node_run(tmp_path, name)
        own = read_json(folder / "client_scores.json")
        assert own["clients"] == [name]
        for score in ("client", "personal"):
            assert own[score] == [table[score][place]]
        summary = read_json(folder / "summary.json")
        assert summary["scores"]["client"]["final"] == table["client"][place]
        assert sum(map(sum, summary["measures"]["client"]["confusion"])) == table["test_samples"][place]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [line["round"] for line in lines] == [1, 2, 3]
        assert lines[-1]["client"] == table["client"][place]  # no server stage: the last round's model is the final one
        assert all(line["bytes_up"] > 0 and line["loss"] > 0 for line in lines)
    page = write_page([node_run(tmp_path, "west")], notify=lambda text: None).read_text()
    assert "west" in page
    pooled = read_json(made.runs / "1/summary.json")["measures"]["client"]["confusion"]
    each = [read_json(node_run(tmp_path, name) / "summary.json")["measures"]["client"]["confusion"] for name in NAMES]
    assert pooled == np.sum(each, axis=0).tolist()


@pytest.mark.slow
def test_a_node_finds_out_what_it_gains_afterwards_and_nothing_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    start.start(made, progress=False)
    log = (tmp_path / "south-node/leaves.log").read_text()
    found = gain(node_run(tmp_path, "south"), progress=False)
    (row,) = found["clients"]
    assert row["client"] == "south"
    assert row["paired"]
    assert (tmp_path / "south-node/leaves.log").read_text() == log
    alone = tmp_path / "south-node/alone"
    before = (alone / "model.safetensors").stat().st_mtime_ns
    assert gain(node_run(tmp_path, "south"), progress=False) == found
    assert (alone / "model.safetensors").stat().st_mtime_ns == before  # trained once
    # The same as the recipe `local` on these data gives, which are split as they were in the federation.
    kit = Kit.read(tmp_path / "south-node")
    settings, form = kit.agreement.settings, kit.agreement.form
    data = load_new_client(f"npz:{tmp_path / 'south.npz'}", form, share=None, default_share=0.25, seed=settings.seed)
    same: dict[str, Any] = {"model": "mlp:8", "rounds": 3, "epochs": 1, "seed": settings.seed, "workers": 1}
    stage = {"fine_tune": {"epochs": 5}}
    other = fedframe.run("local", data=data, set=stage, out=tmp_path / "local", progress=False, **same)
    assert row["alone"]["value"] == other.scores["personal"]["final"]


@pytest.mark.slow
def test_training_alone_again_with_other_data_sets_the_old_one_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_clinic(tmp_path, monkeypatch, tell=("north",))
    home, kit = tmp_path / "north-node", Kit.read(tmp_path / "north-node")
    more = Membership(kit, write_arrays(tmp_path / "more.npz", 7, 90), home, None, None)
    assert predictions_alone(more) is None
    train_alone(more, progress=False)
    assert predictions_alone(more) is not None
    assert (home / "alone-1/summary.json").exists()


@pytest.mark.slow
def test_a_run_that_is_not_over_at_a_node_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_clinic(tmp_path, monkeypatch)
    folder = tmp_path / "north-node/runs/abc"
    Membership(Kit.read(tmp_path / "north-node"), f"npz:{tmp_path / 'north.npz'}", tmp_path / "north-node").make_job(
        "abc"
    )
    with pytest.raises(DataError, match="not over yet"):
        gain(folder)


def test_what_is_told_is_read_back_and_what_cannot_be_is_refused() -> None:
    alone, gained = {"value": 0.7, "low": 0.6, "high": 0.8}, {"value": 0.1, "low": -0.1, "high": 0.2, "error": 0.1}
    numbers = gain_numbers(alone, gained)
    assert read_gain(numbers) == (alone, {"value": 0.1, "low": -0.1, "high": 0.2})
    assert read_gain({}) is None
    for name, wrong in (("alone_high", 1.5), ("gain_low", 0.15), ("gain_value", "nan"), ("alone_low", -0.1)):
        assert read_gain({**numbers, name: wrong}) is None
