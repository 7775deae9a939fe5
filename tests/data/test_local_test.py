from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.data import make_federation
from fedframe.data.local_test import from_global, hold_out
from fedframe.errors import SettingError
from tests.data.conftest import sentence, source_of


def plain_largest_remainder(counts: list[int], caps: list[int], target: int, client: int) -> list[int]:
    """Seats of one client, one at a time."""
    total, classes = sum(counts), len(counts)
    able = [c for c in range(classes) if caps[c] > 0]
    seats = [0] * classes
    if target >= len(able):
        for c in able:
            seats[c] = 1
    while sum(seats) < target:
        open_classes = [c for c in able if seats[c] < caps[c]]
        if not open_classes:
            break
        owed = {c: Fraction(target * counts[c], total) - seats[c] for c in open_classes}
        # the largest debt; among equals the first class counted from the client's number
        seats[max(open_classes, key=lambda c: (owed[c], -((c - client) % classes)))] += 1
    return seats


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


@given(clients_of, st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.9]))
@settings(deadline=None, max_examples=200)
def test_the_held_out_share_is_the_plain_largest_remainder(counts: list[list[int]], share: float) -> None:
    owner, labels = rows_of(counts)
    classes = len(counts[0])
    mask = hold_out(owner, labels, len(counts), classes, share, np.random.default_rng(0))
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


@given(clients_of, st.lists(st.integers(0, 9), min_size=5, max_size=5))
@settings(deadline=None, max_examples=200)
def test_the_global_draw_is_the_plain_largest_remainder(counts: list[list[int]], stock: list[int]) -> None:
    owner, labels = rows_of(counts)
    classes = len(counts[0])
    stock = stock[:classes]
    pool = np.repeat(np.arange(classes), stock)
    drawn = from_global(owner, labels, pool, len(counts), classes, np.random.default_rng(0))
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
