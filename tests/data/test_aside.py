"""Training samples that the server holds: balanced, taken from the clients alone, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedframe.data import Federation, load_source, make_federation
from fedframe.data.server_samples import put_aside
from fedframe.errors import SettingError
from tests.helpers import blobs


def dealt(**changes: object) -> Federation:
    data = {**blobs(clients=4, each=24), **changes}
    return make_federation(load_source(data), partition="user", clients=None, seed=0)


def test_server_gets_as_many_samples_of_every_class_and_clients_lose_them() -> None:
    before = dealt()
    after = put_aside(before, 5, 0, "part.samples")
    labels = before.source.train.y
    assert torch.bincount(labels[after.aside]).tolist() == [5, 5, 5]
    assert {*after.aside.tolist()} | {*after.train.values.tolist()} == {*before.train.values.tolist()}
    assert not {*after.aside.tolist()} & {*after.train.values.tolist()}
    for k in range(4):
        assert {*after.train[k].tolist()} == {*before.train[k].tolist()} - {*after.aside.tolist()}


def test_no_test_sample_is_taken_and_test_sets_stay_as_they_were() -> None:
    before = dealt()
    after = put_aside(before, 5, 0, "part.samples")
    assert after.local_test_pool == "train"
    assert not {*after.aside.tolist()} & {*after.local_test.values.tolist()}
    assert torch.equal(after.local_test.values, before.local_test.values)


def test_user_is_told_how_much_the_server_holds() -> None:
    before = dealt()
    note = put_aside(before, 5, 0, "part.samples").notes[-1]
    assert "The server holds 15 labelled training samples, 5 of each class" in note
    assert f"{15 / len(before.train.values):.1%} of it" in note


def test_seed_fixes_the_draw() -> None:
    first, second, third = (put_aside(dealt(), 5, seed, "part.samples").aside for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_more_than_half_of_a_class_is_refused_with_a_number_that_works() -> None:
    y = blobs(clients=4, each=24)["y_train"].copy()
    rare = np.flatnonzero(y == 2)
    y[rare[9:]] = 0
    federation = dealt(y_train=y)
    with pytest.raises(SettingError, match=r"part.samples = 50 is more than half of a class; part.samples = \d works"):
        put_aside(federation, 50, 0, "part.samples")
    most = int((federation.source.train.y[federation.train.values] == 2).sum()) // 2
    assert len(put_aside(federation, most, 0, "part.samples").aside) == 3 * most


def test_class_without_training_samples_is_refused_by_name() -> None:
    y = np.where(blobs(clients=4, each=24)["y_train"] == 2, 0, blobs(clients=4, each=24)["y_train"])
    y[0] = 2
    with pytest.raises(SettingError, match="of class '2' the clients train on 1, too few to give one away"):
        put_aside(dealt(y_train=y), 3, 0, "part.samples")


def test_client_keeps_its_last_sample() -> None:
    user = np.concatenate([np.arange(80), np.full(16, 80)])  # eighty clients with one sample each
    federation = dealt(user_train=user)
    after = put_aside(federation, 2, 0, "part.samples")
    assert int(after.train.sizes().min()) >= 1
