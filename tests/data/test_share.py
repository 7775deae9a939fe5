"""A share of the training samples: every class shrinks by the same factor, nothing vanishes, tests stay whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedframe
from fedframe.data import load_source
from fedframe.data.longtail import tail_counts
from fedframe.data.share import rows_of_share
from fedframe.errors import SettingError
from fedframe.jobs.build import make_clients
from fedframe.jobs.gather import gather
from tests.data.conftest import sentence


def kept(counts: list[int], share: float, seed: int = 0, users: np.ndarray | None = None) -> np.ndarray:
    """Rows that a share leaves of classes of these sizes."""
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))
    return rows_of_share(labels, users, len(counts), share, np.random.default_rng(seed))


@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 3),
)
def test_share_keeps_every_class_and_its_proportion(counts: list[int], share: float, seed: int) -> None:
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))
    rows = rows_of_share(labels, None, len(counts), share, np.random.default_rng(seed))
    assert np.array_equal(rows, np.unique(rows))
    left = np.bincount(labels[rows], minlength=len(counts))
    present = np.array(counts) > 0
    assert ((left > 0) == present).all()
    assert len(rows) == max(present.sum(), int(share * len(labels) + 0.5))
    if share * min(c for c in counts if c) >= 1:  # nobody had to be given a seat out of turn
        assert np.abs(left - len(rows) * np.array(counts) / len(labels)).max() < 1


def test_share_of_one_half_is_drawn_by_the_seed() -> None:
    first, again, other = kept([20, 20], 0.5, 1), kept([20, 20], 0.5, 1), kept([20, 20], 0.5, 2)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("share", [0.1, 0.22, 0.5])
def test_long_tail_keeps_its_form(share: float) -> None:
    """Whether the tail is in the data or cut by the partition, each class has its share of the whole tail."""
    whole = tail_counts(np.full(100, 500), 100.0)
    labels = np.repeat(np.arange(100), whole)
    rows = rows_of_share(labels, None, 100, share, np.random.default_rng(0))
    assert np.abs(np.bincount(labels[rows]) - share * whole).max() <= 1
    cut_later = tail_counts(np.full(100, round(500 * share)), 100.0)
    assert np.abs(cut_later - share * whole).max() <= 1


def test_no_user_vanishes_with_the_data() -> None:
    users = np.random.default_rng(0).permutation(np.repeat(np.arange(50), 4))
    rows = kept([100, 100], 0.1, users=users)
    assert set(users[rows]) == set(range(50))
    assert 20 <= len(rows) <= 20 + 50


def test_whole_share_leaves_the_data_as_they_are() -> None:
    plain, whole = load_source("digits", seed=3), load_source("digits", seed=3, data_share=1.0)
    assert torch.equal(plain.train.y, whole.train.y)
    assert torch.equal(plain.mean, whole.mean)


def test_share_does_not_touch_the_test_set() -> None:
    whole, part = load_source("digits"), load_source("digits", data_share=0.1)
    assert whole.test is not None
    assert part.test is not None
    assert torch.equal(whole.test.x.take(torch.arange(50)), part.test.x.take(torch.arange(50)))
    assert len(part.train) == round(0.1 * len(whole.train))
    assert len(load_source(whole, data_share=0.5).train) == 719


def test_run_trains_on_the_share() -> None:
    settings = gather({"data_share": 0.2, "clients": 4}, None)
    assert len(make_clients(settings, "digits").source.train) == round(0.2 * 1438)
    assert gather({}, None).data_share == 1.0


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_share_outside_its_bounds_is_refused_in_one_sentence(share: float) -> None:
    assert "data_share" in sentence(lambda: load_source("digits", data_share=share), SettingError)
    assert "data_share" in sentence(lambda: fedframe.run(data_share=share), SettingError)
