"""Stratified draws: test sets by the largest remainder rule, and a share of the data that keeps every class."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedframe
from fedframe.data import load_source, make_federation
from fedframe.data.stratified import draw_from_global, held_out_mask, long_tail_counts, subsample_rows
from fedframe.errors import SettingError
from fedframe.jobs.build import make_clients
from fedframe.jobs.gather import gather
from tests.data.conftest import sentence, source_of


def plain_largest_remainder(counts: list[int], caps: list[int], target: int, client: int) -> list[int]:
    """The test samples of one client per class, assigned one at a time."""
    total, classes = sum(counts), len(counts)
    available = [c for c in range(classes) if caps[c] > 0]
    taken = [0] * classes
    if target >= len(available):
        for c in available:
            taken[c] = 1
    while sum(taken) < target:
        open_classes = [c for c in available if taken[c] < caps[c]]
        if not open_classes:
            break
        priority = {c: Fraction(target * counts[c], total) - taken[c] for c in open_classes}
        # the highest priority; ties go to the first class counted from the client's number
        taken[max(open_classes, key=lambda c: (priority[c], -((c - client) % classes)))] += 1
    return taken


clients_of = st.integers(1, 5).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 12), min_size=classes, max_size=classes).filter(any), min_size=1, max_size=5
    )
)


def rows_of(counts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Owner and label of every row of a table of counts."""
    cells = [(k, c) for k, row in enumerate(counts) for c, n in enumerate(row) for _ in range(n)]
    owner, labels = np.array(cells, np.int64).T
    mix = np.random.default_rng(0).permutation(len(owner))
    return owner[mix], labels[mix]


@pytest.mark.slow
@given(clients_of, st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.9]))
@settings(max_examples=200)
def test_the_held_out_share_is_the_plain_largest_remainder(counts: list[list[int]], share: float) -> None:
    owner, labels = rows_of(counts)
    classes = len(counts[0])
    mask = held_out_mask(owner, labels, len(counts), classes, share, np.random.default_rng(0))
    for k, row in enumerate(counts):
        n = sum(row)
        target = min(int(share * n + 0.5), n - 1)
        if share > 0:
            target = max(target, min(1, n - 1))
        caps = [min(max(0, count - 1), -(-target * count // n)) for count in row]
        found = np.bincount(labels[(owner == k) & mask], minlength=classes).tolist()
        assert found == plain_largest_remainder(row, caps, target, k)
        left = np.bincount(labels[(owner == k) & ~mask], minlength=classes)
        assert ((left > 0) == (np.array(row) > 0)).all()  # every class stays trained on


@pytest.mark.slow
@given(clients_of, st.lists(st.integers(0, 9), min_size=5, max_size=5))
@settings(max_examples=200)
def test_the_global_draw_is_the_plain_largest_remainder(counts: list[list[int]], stock: list[int]) -> None:
    owner, labels = rows_of(counts)
    classes = len(counts[0])
    stock = stock[:classes]
    pool = np.repeat(np.arange(classes), stock)
    drawn = draw_from_global(owner, labels, pool, len(counts), classes, np.random.default_rng(0))
    for k, row in enumerate(counts):
        usable = [count if stock[c] else 0 for c, count in enumerate(row)]
        total = sum(usable)
        target = min([total, *(stock[c] * total // n for c, n in enumerate(usable) if n)])
        caps = [min(n, stock[c]) for c, n in enumerate(usable)]
        mine = drawn[k]
        assert len(set(mine.tolist())) == len(mine)  # no row twice
        found = np.bincount(pool[mine.numpy()], minlength=classes).tolist()
        assert found == (plain_largest_remainder(usable, caps, target, k) if total else [0] * classes)


def test_local_test_rows_leave_the_training_rows() -> None:
    source = source_of([*range(4)] * 50, 4)
    made = make_federation(source, partition="dirichlet:0.5", clients=6, seed=0)
    assert made.local_test_pool == "train"
    together = torch.cat([made.train.values, made.local_test.values])
    assert sorted(together.tolist()) == list(range(200))
    for k in range(6):
        n = len(made.train[k]) + len(made.local_test[k])
        assert len(made.local_test[k]) == int(0.25 * n + 0.5)


def test_a_client_with_one_sample_has_no_test_set_and_keeps_its_sample() -> None:
    source = source_of([0, 1, 1, 1, 1], 2, np.array([0, 1, 1, 1, 1]))
    made = make_federation(source, partition="user", clients=None, seed=0, local_test=0.9)
    assert made.train.sizes().tolist() == [1, 1]
    assert made.local_test.sizes().tolist() == [0, 3]


def test_global_local_tests_keep_all_training_rows_and_represent_every_class() -> None:
    source = source_of([*range(5)] * 40, 5, test=[*range(5)] * 20)
    made = make_federation(source, partition="dirichlet:0.5", clients=4, seed=0, local_test="global")
    assert made.local_test_pool == "test"
    assert sorted(made.train.values.tolist()) == list(range(200))
    assert torch.equal(made.table() > 0, made.local_test_table() > 0)


def test_the_local_test_share_does_not_change_who_owns_what() -> None:
    source = source_of([*range(4)] * 50, 4)
    small = make_federation(source, partition="dirichlet:1", clients=4, seed=3, local_test=0.1)
    large = make_federation(source, partition="dirichlet:1", clients=4, seed=3, local_test=0.5)
    for k in range(4):
        a = set(small.train[k].tolist()) | set(small.local_test[k].tolist())
        assert a == set(large.train[k].tolist()) | set(large.local_test[k].tolist())


@pytest.mark.parametrize("local_test", [1.0, -0.1, "globl"])
def test_a_bad_local_test_ends_in_a_sentence(local_test: float | str) -> None:
    source = source_of([0, 1] * 20, 2)

    def make() -> object:
        return make_federation(
            source,
            partition="iid",
            clients=2,
            seed=0,
            local_test=local_test,  # type: ignore[arg-type]
        )

    assert "e.g. 0.25" in sentence(make, SettingError)


def kept(counts: list[int], share: float, seed: int = 0, users: np.ndarray | None = None) -> np.ndarray:
    """Rows that a share leaves of classes of these sizes."""
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))
    return subsample_rows(labels, users, len(counts), share, np.random.default_rng(seed))


@pytest.mark.slow
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 3),
)
def test_share_keeps_every_class_and_its_proportion(counts: list[int], share: float, seed: int) -> None:
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))
    rows = subsample_rows(labels, None, len(counts), share, np.random.default_rng(seed))
    assert np.array_equal(rows, np.unique(rows))
    left = np.bincount(labels[rows], minlength=len(counts))
    present = np.array(counts) > 0
    assert ((left > 0) == present).all()
    assert len(rows) == max(present.sum(), int(share * len(labels) + 0.5))
    if share * min(c for c in counts if c) >= 1:  # no class was raised to its minimum of one sample
        assert np.abs(left - len(rows) * np.array(counts) / len(labels)).max() < 1


def test_share_of_one_half_is_drawn_by_the_seed() -> None:
    first, again, other = kept([20, 20], 0.5, 1), kept([20, 20], 0.5, 1), kept([20, 20], 0.5, 2)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("share", [0.1, 0.22, 0.5])
def test_long_tail_keeps_its_form(share: float) -> None:
    """Whether the tail is in the data or cut by the partition, each class has its share of the whole tail."""
    whole = long_tail_counts(np.full(100, 500), 100.0)
    labels = np.repeat(np.arange(100), whole)
    rows = subsample_rows(labels, None, 100, share, np.random.default_rng(0))
    assert np.abs(np.bincount(labels[rows]) - share * whole).max() <= 1
    cut_later = long_tail_counts(np.full(100, round(500 * share)), 100.0)
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
