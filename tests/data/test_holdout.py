"""Held-out data: samples on the server come from the clients alone; a validation set replaces all test data."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.data import Federation, Ragged, load_source, make_federation
from fedframe.data.holdout import hold_out_server_samples, hold_out_validation
from fedframe.errors import SettingError
from fedframe.jobs.build import make_clients
from fedframe.jobs.gather import gather
from tests.helpers import blobs


def by_user(**changes: object) -> Federation:
    data = {**blobs(clients=4, each=24), **changes}
    return make_federation(load_source(data), partition="user", clients=None, seed=0)


def test_server_gets_as_many_samples_of_every_class_and_clients_lose_them() -> None:
    before = by_user()
    after = hold_out_server_samples(before, 5, 0, "part.samples")
    labels = before.source.train.y
    assert torch.bincount(labels[after.server_rows]).tolist() == [5, 5, 5]
    assert {*after.server_rows.tolist()} | {*after.train.values.tolist()} == {*before.train.values.tolist()}
    assert not {*after.server_rows.tolist()} & {*after.train.values.tolist()}
    for k in range(4):
        assert {*after.train[k].tolist()} == {*before.train[k].tolist()} - {*after.server_rows.tolist()}


def test_no_test_sample_is_taken_and_test_sets_stay_as_they_were() -> None:
    before = by_user()
    after = hold_out_server_samples(before, 5, 0, "part.samples")
    assert after.local_test_pool == "train"
    assert not {*after.server_rows.tolist()} & {*after.local_test.values.tolist()}
    assert torch.equal(after.local_test.values, before.local_test.values)


def test_note_says_how_much_the_server_holds() -> None:
    before = by_user()
    note = hold_out_server_samples(before, 5, 0, "part.samples").notes[-1]
    assert "The server holds 15 labelled training samples, 5 of each class" in note
    assert f"{15 / len(before.train.values):.1%} of it" in note


def test_seed_fixes_the_draw() -> None:
    first, second, third = (
        hold_out_server_samples(by_user(), 5, seed, "part.samples").server_rows for seed in (0, 0, 1)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_more_than_half_of_a_class_is_refused_with_a_number_that_works() -> None:
    y = blobs(clients=4, each=24)["y_train"].copy()
    rare = np.flatnonzero(y == 2)
    y[rare[9:]] = 0
    federation = by_user(y_train=y)
    with pytest.raises(SettingError, match=r"part.samples = 50 is more than half of a class; part.samples = \d works"):
        hold_out_server_samples(federation, 50, 0, "part.samples")
    most = int((federation.source.train.y[federation.train.values] == 2).sum()) // 2
    assert len(hold_out_server_samples(federation, most, 0, "part.samples").server_rows) == 3 * most


def test_class_without_training_samples_is_refused_by_name() -> None:
    y = np.where(blobs(clients=4, each=24)["y_train"] == 2, 0, blobs(clients=4, each=24)["y_train"])
    y[0] = 2
    with pytest.raises(SettingError, match="of class '2' the clients train on 1, too few to give one away"):
        hold_out_server_samples(by_user(y_train=y), 3, 0, "part.samples")


def test_client_keeps_its_last_sample() -> None:
    user = np.concatenate([np.arange(80), np.full(16, 80)])  # eighty clients with one sample each
    federation = by_user(user_train=user)
    after = hold_out_server_samples(federation, 2, 0, "part.samples")
    assert int(after.train.sizes().min()) >= 1


SOURCE = load_source("digits")


def rows_of_held_out(federation: Federation) -> list[set[int]]:
    """Training rows of the real run that each client's validation set holds, found by their pixels."""
    assert federation.source.test is not None
    train = SOURCE.train.x.take(torch.arange(len(SOURCE.train))).flatten(1)
    place = {row.tobytes(): number for number, row in enumerate(train.numpy())}
    assert len(place) == len(train), "two images of the set are equal"
    test = federation.source.test.x.take(torch.arange(len(federation.source.test))).flatten(1).numpy()
    lists = (federation.local_test[client].tolist() for client in range(len(federation)))
    return [{place[test[row].tobytes()] for row in rows} for rows in lists]


@pytest.mark.slow
@settings(max_examples=20)
@given(
    share=st.floats(0.05, 0.9),
    partition=st.sampled_from(["dirichlet:0.1", "iid", "classes:3", "longtail:10+dirichlet:0.5"]),
    local_test=st.sampled_from([0.25, "global"]),
    seed=st.integers(0, 99),
)
def test_training_data_are_cut_in_two_and_test_data_stay_unseen(
    share: float, partition: str, local_test: float, seed: int
) -> None:
    real = make_federation(SOURCE, partition=partition, clients=7, seed=seed, local_test=local_test)
    tuning = hold_out_validation(real, share, seed)
    held_out = rows_of_held_out(tuning)
    for client in range(7):
        kept = set(tuning.train[client].tolist())
        assert kept | held_out[client] == set(real.train[client].tolist())
        assert not kept & held_out[client]
        size = len(real.train[client])
        assert kept
        assert abs(len(held_out[client]) - share * size) <= 0.5 + len(SOURCE.classes)
    assert len(tuning.source.test or ()) == sum(map(len, held_out))
    assert tuning.names == real.names


def test_no_share_changes_nothing_and_a_wrong_one_is_refused() -> None:
    real = make_federation(SOURCE, partition="iid", clients=3, seed=0)
    assert hold_out_validation(real, 0.0, 0) is real
    with pytest.raises(SettingError, match="validate_share"):
        hold_out_validation(real, 1.0, 0)
    one_each = dataclasses.replace(real, train=Ragged(torch.arange(4), torch.arange(3)))
    with pytest.raises(SettingError, match="use fewer clients"):
        hold_out_validation(one_each, 0.5, 0)


def test_samples_that_clients_share_are_held_out_of_all_of_them() -> None:
    real = make_federation(SOURCE, partition="iid", clients=2, seed=0)
    rows = torch.arange(100)
    both = dataclasses.replace(real, train=Ragged(torch.tensor([0, 100, 200]), torch.cat([rows, rows])))
    tuning = hold_out_validation(both, 0.3, 0)
    held_out = rows_of_held_out(tuning)
    assert not set(tuning.train.values.tolist()) & (held_out[0] | held_out[1])


def test_settings_and_a_federation_from_python_are_served_alike() -> None:
    asked = gather({"validate_share": 0.3, "clients": 5, "seed": 4}, None)
    by_name = make_clients(asked, "digits")
    without = make_clients(gather({"clients": 5, "seed": 4}, None), "digits")
    by_object = make_clients(asked, without)
    for left, right in ((by_name.train, by_object.train), (by_name.local_test, by_object.local_test)):
        assert torch.equal(left.values, right.values)
    assert np.isin(by_name.train.values, without.train.values).all()
