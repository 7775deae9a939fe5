"""Scores client by client, their spread, and clients that were kept out of the training."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedframe
from fedframe.data import Federation, load_source, make_federation
from fedframe.data.holdout import hold_out_clients
from fedframe.errors import SettingError
from fedframe.settings import check
from tests.helpers import blobs, equal_states, make_job, same_file

SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 8, "workers": 1, "progress": False, "model": "mlp:8"}


def scores_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "client_scores.json").read_text())
    return content


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_means_and_spread_of_the_summary_come_from_the_clients(tmp_path: Path, method: str) -> None:
    result = fedframe.run(method, data=blobs(clients=12), partition="user", out=tmp_path / "run", **SMALL)
    table = scores_of(result.folder)
    assert len(table["clients"]) == 12
    for score in ("client", "personal"):
        known = [(a, n) for a, n in zip(table[score], table["test_samples"], strict=True) if a is not None]
        final = result.summary["scores"][score]
        spread = result.summary["spread"][score]
        if not known:
            assert final["final"] is None
            assert spread is None
            continue
        values = [a for a, _ in known]
        assert np.mean(values) == pytest.approx(final["final"], rel=1e-12)
        assert np.average(values, weights=[n for _, n in known]) == pytest.approx(final["weighted"], rel=1e-12)
        assert spread["std"] == pytest.approx(np.std(values))
        assert spread["worst_tenth"] == pytest.approx(np.mean(sorted(values)[:2]))  # a tenth of 12, rounded up
    assert (result.scores["client"]["final"] is None) == (method == "fedper")


@pytest.mark.slow
def test_scores_of_a_client_are_what_its_models_get_right(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data="digits", clients=4, out=tmp_path / "run", **{**SMALL, "model": "mlp"})
    table = scores_of(result.folder)
    source = load_source("digits")
    federation = make_federation(source, partition="dirichlet:0.1", clients=4, seed=0)
    for client in range(4):
        rows = federation.local_test[client]
        wanted = [source.classes[int(y)] for y in source.train.y[rows]]
        assert table["test_samples"][client] == len(rows)
        assert table["train_samples"][client] == len(federation.train[client])
        for score, model in (("client", result.model), ("personal", result.personal(client))):
            right = [a == b for a, b in zip(model.predict(source.train.x.take(rows)), wanted, strict=True)]
            assert table[score][client] == pytest.approx(np.mean(right))


@pytest.mark.slow
def test_named_clients_are_named(tmp_path: Path) -> None:
    data = blobs(clients=3)
    data["user_train"] = np.array(["north", "south", "west"])[data["user_train"]]
    result = fedframe.run("fedavg", data=data, partition="user", new_clients=1, out=tmp_path / "run", **SMALL)
    table = scores_of(result.folder)
    assert sorted([*table["clients"], *table["new"]["clients"]]) == ["north", "south", "west"]
    assert json.loads((result.folder / "clients.json").read_text()) == table["clients"]


# -- clients that are kept out -----------------------------------------------------------------------------------------
@functools.cache
def digits_federation() -> Federation:
    return make_federation(load_source("digits"), partition="dirichlet:0.5", clients=10, seed=0)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(0, 50))
def test_kept_out_clients_keep_their_data_and_the_others_theirs(count: int, seed: int) -> None:
    whole = digits_federation()
    left = hold_out_clients(whole, count, seed)
    assert (len(left), len(left.all_clients)) == (10 - count, 10)
    assert left.all_clients.with_new_clients is None
    pieces = [(left.all_clients.train[k].tolist(), left.all_clients.local_test[k].tolist()) for k in range(10)]
    assert sorted(pieces) == sorted((whole.train[k].tolist(), whole.local_test[k].tolist()) for k in range(10))
    for k in range(len(left)):
        assert left.train[k].tolist() == pieces[k][0]
        assert left.local_test[k].tolist() == pieces[k][1]


def test_share_or_number_of_clients_is_kept_out_and_too_many_are_refused() -> None:
    whole = digits_federation()
    assert hold_out_clients(whole, 0, 0) is whole
    assert len(hold_out_clients(whole, 0.25, 0)) == 8
    assert len(hold_out_clients(whole, 0.01, 0)) == 9
    with pytest.raises(SettingError, match=r"new_clients = 10 leaves none of 10 clients to train; use at most 9"):
        hold_out_clients(whole, 10, 0)
    with pytest.raises(SettingError, match=r"new_clients = 2.5 is neither a share .* use 0.2 or 2"):
        check({"new_clients": 2.5})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedloge", "scaffold", "apple", "ditto", "local"])
def test_new_clients_are_scored_and_never_trained_on(tmp_path: Path, method: str) -> None:
    """A run whose data never had the new clients ends with the same model, bit for bit."""
    data, more = blobs(clients=6, each=30), {**SMALL, "model": "mlp:16", "partition": "user"}
    result = fedframe.run(method, data=data, new_clients=2, out=tmp_path / "with", **more)
    new = result.scores["new"]
    assert new["count"] == 2
    assert new["final"] is not None
    assert (new["client"] is None) == (result.scores["generic"]["final"] is None)
    table = scores_of(result.folder)
    assert sorted([*table["clients"], *table["new"]["clients"]]) == ["0", "1", "2", "3", "4", "5"]
    assert np.mean(table["new"]["personal"]) == pytest.approx(new["final"])
    assert len(table["clients"]) == result.summary["clients"] == 4
    assert result.summary["definitions"]["new"]
    assert not list((result.folder / "personal").rglob("000004*"))
    left = make_job(tmp_path, data, "mlp:16", method=method, new_clients=2).federation
    without = Federation(left.source, left.train, left.local_test, left.local_test_pool, left.names)
    other = fedframe.run(method, data=without, out=tmp_path / "without", **more)
    assert same_file(result.folder / "model.safetensors", other.folder / "model.safetensors")
    assert "new" not in other.scores


@pytest.mark.slow
def test_new_clients_are_the_same_for_any_number_of_workers_and_after_a_resume(tmp_path: Path) -> None:
    more = {**SMALL, "partition": "user", "new_clients": 0.4}
    one = fedframe.run("fedavg", data=blobs(clients=5), out=tmp_path / "one", **more)
    two = fedframe.run("fedavg", data=blobs(clients=5), out=tmp_path / "two", **{**more, "workers": 2})
    assert one.settings.clients == 5  # the config says how many there are, so that it deals the same again
    assert one.scores == two.scores
    (two.folder / "summary.json").unlink()  # as if it had been killed at its very end
    assert fedframe.resume(two.folder, data=blobs(clients=5), progress=False).scores == one.scores
    assert scores_of(one.folder) == scores_of(two.folder)


@pytest.mark.slow
def test_new_client_gets_what_fedframe_personalise_gives(tmp_path: Path) -> None:
    """With a client stage that draws nothing by chance: one batch, so that the order of samples does not matter."""
    data, more = blobs(clients=4, each=30), {**SMALL, "partition": "user", "batch": 1000}
    result = fedframe.run("fedavg", data=data, new_clients=1, out=tmp_path / "run", **more)
    everyone = make_job(tmp_path, data, new_clients=1).federation.all_clients
    source = everyone.source
    train, test = (source.train.x.take(rows) for rows in (everyone.train[3], everyone.local_test[3]))
    y, y_test = (source.train.y[rows] for rows in (everyone.train[3], everyone.local_test[3]))
    late = result.personalise({"x_train": train, "y_train": y, "x_test": test, "y_test": y_test}, progress=False)
    assert late.scores["client"] == pytest.approx(result.scores["new"]["client"])
    assert late.scores["personal"] == pytest.approx(result.scores["new"]["final"])


def test_runs_without_new_clients_are_what_they_were(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert job.federation.with_new_clients is None
    assert job.federation.all_clients is job.federation
    states = [dict(make_job(tmp_path, new_clients=n).template.state_dict()) for n in (0, 1)]
    assert equal_states(*states)
    assert torch.equal(job.federation.train.values, make_job(tmp_path, new_clients=0.0).federation.train.values)
