from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.data import PARTITIONS, Federation, make_federation
from fedframe.data.dirichlet import dirichlet
from fedframe.data.partition import read_partition
from fedframe.data.stratified import long_tail_counts
from fedframe.errors import SettingError
from tests.data.conftest import sentence, source_of

labels_of = st.integers(1, 6).flatmap(
    lambda c: st.tuples(st.just(c), st.lists(st.integers(0, c - 1), min_size=1, max_size=200))
)


def whole(labels: list[int], classes: int, partition: str, clients: int, seed: int, **more: int) -> Federation:
    source = source_of(labels, classes)
    return make_federation(
        source,
        partition=partition,
        clients=clients,
        seed=seed,
        local_test=0.0,
        **more,
    )


def rows(federation: Federation) -> list[int]:
    return sorted(federation.train.values.tolist())


@pytest.mark.slow
@given(labels_of, st.integers(1, 20), st.integers(0, 5), st.sampled_from(["iid", "shards:1", "shards:2"]))
def test_every_row_goes_to_exactly_one_client_and_shares_are_even(
    drawn: tuple[int, list[int]], clients: int, seed: int, partition: str
) -> None:
    classes, labels = drawn
    pieces = clients * (2 if partition == "shards:2" else 1)
    if len(labels) < pieces:
        return
    made = whole(labels, classes, partition, clients, seed)
    assert rows(made) == list(range(len(labels)))
    sizes = made.train.sizes()
    assert sizes.max() - sizes.min() <= pieces // clients


@pytest.mark.slow
@given(
    labels_of,
    st.integers(1, 20),
    st.sampled_from([0.01, 0.1, 1.0, 100.0]),
    st.integers(1, 12),
    st.integers(0, 3),
    st.sampled_from(["", ":capped"]),
)
def test_dirichlet_gives_every_row_once_and_meets_the_minimum_or_says_why_not(
    drawn: tuple[int, list[int]], clients: int, alpha: float, min_size: int, seed: int, cap: str
) -> None:
    classes, labels = drawn
    if clients * min_size > len(labels):
        with pytest.raises(SettingError):
            whole(labels, classes, f"dirichlet:{alpha}{cap}", clients, seed, min_size=min_size)
        return
    made = whole(labels, classes, f"dirichlet:{alpha}{cap}", clients, seed, min_size=min_size)
    assert rows(made) == list(range(len(labels)))
    assert made.train.sizes().min() >= min_size


@pytest.mark.slow
def test_dirichlet_proportions_have_the_spread_of_their_alpha() -> None:
    labels = np.repeat(np.arange(200), 1000).tolist()  # 200 draws of Dir(alpha) over 10 clients
    for alpha in (0.1, 1.0, 10.0):
        share = whole(labels, 200, f"dirichlet:{alpha}", 10, 0).table().double() / 1000
        # Beta(a, 9a): mean 1/10, variance 0.09 / (10 a + 1)
        assert float(share.var(correction=0)) == pytest.approx(0.09 / (10 * alpha + 1), rel=0.1)


@pytest.mark.slow
@given(labels_of, st.integers(1, 12), st.sampled_from([0.01, 0.1, 1.0, 100.0]), st.integers(0, 5))
def test_under_a_cap_who_has_an_equal_share_gets_nothing_of_further_classes(
    drawn: tuple[int, list[int]], clients: int, alpha: float, seed: int
) -> None:
    classes, labels = drawn
    owner, _ = dirichlet(np.array(labels), clients, classes, alpha, 0, np.random.default_rng(seed), capped=True)
    held = np.zeros(clients)
    for c in range(classes):
        here = np.bincount(owner[np.array(labels) == c], minlength=clients)
        assert not here[held >= len(labels) / clients].any()
        held += here
    assert held.sum() == len(labels)


def test_a_cap_makes_sizes_more_alike_and_leaves_labels_skewed() -> None:
    labels = np.repeat(np.arange(10), 600).tolist()
    free, capped = (whole(labels, 10, f"dirichlet:0.1{cap}", 20, 0) for cap in ("", ":capped"))
    assert capped.train.sizes().double().std() < free.train.sizes().double().std()
    share = capped.table().double() / capped.train.sizes()[:, None]
    assert float(share.max(1).values.mean()) > 0.5


def test_without_a_second_class_a_cap_changes_nothing() -> None:
    free, capped = (whole([0] * 100, 1, f"dirichlet:0.5{cap}", 5, 3) for cap in ("", ":capped"))
    assert free.train.values.tolist() == capped.train.values.tolist()


def test_a_small_client_is_topped_up_from_larger_ones_and_the_note_says_so() -> None:
    labels = np.repeat(np.arange(2), 500).tolist()
    made = whole(labels, 2, "dirichlet:0.01", 50, 0)
    assert made.train.sizes().min() == 10
    assert "draws" in made.notes[0]
    assert "moved" in made.notes[0]
    assert rows(made) == list(range(1000))


def test_a_draw_that_meets_the_minimum_is_not_touched() -> None:
    assert whole([0, 1] * 500, 2, "dirichlet:1", 5, 0).notes == ()


def test_the_dirichlet_error_names_numbers_that_work() -> None:
    labels = [0, 1] * 50
    text = sentence(lambda: whole(labels, 2, "dirichlet:0.1", 20, 0), SettingError)
    assert "at most 10 clients or a minimum client size of 5" in text
    whole(labels, 2, "dirichlet:0.1", 10, 0)
    whole(labels, 2, "dirichlet:0.1", 20, 0, min_size=5)


@pytest.mark.slow
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40), st.integers(0, 3))
@settings(max_examples=150)
def test_classes_k_gives_each_client_exactly_k_balanced_classes(
    classes: int, held: int, clients: int, seed: int
) -> None:
    if held > classes or clients * held < classes:
        return
    labels = np.random.default_rng(seed).integers(classes, size=60 * classes).tolist()
    labels += list(range(classes)) * 40  # enough for 40 holders
    made = whole(labels, classes, f"classes:{held}", clients, seed)
    table = made.table()
    assert rows(made) == list(range(len(labels)))
    assert ((table > 0).sum(1) == held).all()
    holders = (table > 0).sum(0)
    assert holders.min() >= 1
    assert holders.max() - holders.min() <= 1
    for column in table.T:
        pieces = column[column > 0]
        assert pieces.max() - pieces.min() <= 1


def test_classes_k_mixes_the_combinations_of_classes() -> None:
    table = whole([*range(10)] * 100, 10, "classes:2", 100, 0).table()
    combinations = {tuple(row.nonzero()[:, 0].tolist()) for row in table}
    assert len(combinations) > 30  # of 45 pairs; assigning the classes in turn would give 5


def test_classes_k_says_what_would_work() -> None:
    labels = [*range(10)] * 20
    assert "at least 4 clients" in sentence(lambda: whole(labels, 10, "classes:3", 3, 0), SettingError)
    assert "only 10 classes" in sentence(lambda: whole(labels, 10, "classes:11", 9, 0), SettingError)
    assert "at most 40 clients" in sentence(lambda: whole(labels, 10, "classes:5", 100, 0), SettingError)
    whole(labels, 10, "classes:5", 40, 0)


def test_shards_hold_neighbouring_labels() -> None:
    table = whole([*range(10)] * 20, 10, "shards:2", 10, 0).table()
    assert ((table > 0).sum(1) <= 2).all()
    assert (table.sum(1) == 20).all()


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.sampled_from([1.0, 10.0, 100.0, 2.5]),
    st.integers(0, 3),
)
def test_the_long_tail_keeps_the_counts_of_its_formula(counts: list[int], factor: float, seed: int) -> None:
    labels = list(itertools.chain.from_iterable([c] * n for c, n in enumerate(counts)))
    made = whole(labels, len(counts), f"longtail:{factor}+iid", 1, seed)
    last = max(1, len(counts) - 1)
    expected = [max(1, int(min(counts) * factor ** (-c / last) * (1 + 1e-12))) for c in range(len(counts))]
    assert made.class_counts(0).tolist() == expected
    assert len(set(rows(made))) == sum(expected)


def test_cifar10_lt_has_its_known_counts() -> None:
    kept = long_tail_counts(np.full(10, 5000), 100)
    assert kept.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert kept.sum() == 12_406


@pytest.mark.parametrize(("factor", "total"), [(100, 10_847), (50, 12_608), (10, 19_573)])
def test_cifar100_lt_has_its_known_sizes(factor: float, total: int) -> None:
    assert long_tail_counts(np.full(100, 500), factor).sum() == total


def test_natural_clients_keep_their_rows_and_names() -> None:
    users = np.array([5, 3, 5, 7, 3, 5])
    source = source_of([0, 1, 0, 1, 0, 1], 2, users)
    made = make_federation(source, partition="user", clients=None, seed=0, local_test=0.0)
    assert [part.tolist() for part in (made.train[0], made.train[1], made.train[2])] == [
        [1, 4],
        [0, 2, 5],
        [3],
    ]
    assert list(made.names) == ["3", "5", "7"]
    fewer = make_federation(source, partition="user", clients=2, seed=0, local_test=0.0)
    for k, name in enumerate(fewer.names):
        assert (users[fewer.train[k].numpy()] == int(name)).all()
    text = sentence(lambda: make_federation(source, partition="user", clients=4, seed=0), SettingError)
    assert "at most 3" in text


def test_user_needs_natural_clients() -> None:
    text = sentence(lambda: whole([0, 1], 2, "user", 2, 0), SettingError)
    assert "'toy' has none" in text


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.3", "classes:2", "shards:2", "longtail:5+dirichlet:1"])
def test_the_seed_alone_decides(partition: str) -> None:
    source = source_of([*range(5)] * 60, 5)

    def make(seed: int) -> Federation:
        return make_federation(source, partition=partition, clients=5, seed=seed)

    first, again, other = make(1), make(1), make(2)
    assert torch.equal(first.train.values, again.train.values)
    assert torch.equal(first.local_test.values, again.local_test.values)
    assert not torch.equal(first.train.values, other.train.values)


def test_a_split_stays_what_it_was_in_the_last_release() -> None:
    made = whole([*range(4)] * 10, 4, "dirichlet:0.5", 3, 7, min_size=2)
    assert made.table().tolist() == [[1, 3, 8, 0], [9, 4, 2, 2], [0, 3, 0, 8]]


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("dirichlt:0.1", "did you mean 'dirichlet'"),
        ("dirichlet", "dirichlet:0.1"),
        ("dirichlet:-1", "a number above 0"),
        ("dirichlet:nan", "a number above 0"),
        ("dirichlet:0.1:cap", "e.g. dirichlet:0.1."),
        ("dirichlet:capped", "a number above 0"),
        ("shards:2:capped", "a whole number above 0"),
        ("classes:1.5", "a whole number above 0"),
        ("iid:3", "takes no number"),
        ("longtail:100", "longtail:100+iid"),
        ("longtail:0.5+iid", "at least 1"),
        ("iid+user", "joins two partitions"),
    ],
)
def test_a_bad_spec_ends_in_a_sentence(spec: str, part: str) -> None:
    assert part in sentence(lambda: read_partition(spec), SettingError)


@pytest.mark.parametrize(("clients", "part"), [(0, "at least 1"), (None, "clients=10"), (9, "at most 4 clients")])
def test_a_bad_number_of_clients_ends_in_a_sentence(clients: int | None, part: str) -> None:
    source = source_of([0, 1, 0, 1], 2)
    text = sentence(lambda: make_federation(source, partition="iid", clients=clients, seed=0), SettingError)
    assert part in text


def test_every_listed_partition_can_be_read() -> None:
    for spec in PARTITIONS:
        read_partition(spec.replace("...", "iid"))
