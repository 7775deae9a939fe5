from __future__ import annotations

import numpy as np
import pytest
import torch

from fedframe.data import Ragged, load_source, make_federation
from tests.data.conftest import source_of

CLIENTS = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.1", "classes:3", "shards:2", "user"])
def test_a_hundred_thousand_clients_share_a_million_samples(partition: str) -> None:
    n, classes = 1_200_000, 20
    labels = np.arange(n) % classes
    users = np.arange(n) // 12
    source = source_of(labels, classes, users)
    made = make_federation(source, partition=partition, clients=CLIENTS, seed=0, local_test=0.25)
    assert len(made) == len(made.names) == CLIENTS
    both = torch.cat([made.train.values, made.local_test.values])
    assert torch.equal(both.sort().values, torch.arange(n))
    sizes = made.train.sizes() + made.local_test.sizes()
    assert sizes.min() >= (10 if partition == "dirichlet:0.1" else 1)
    assert made.train.sizes().min() >= 1
    if partition == "classes:3":
        assert ((made.table() > 0).sum(1) == 3).all()
    last = made.class_counts(CLIENTS - 1)
    assert torch.equal(last, made.table()[-1])


def test_a_client_is_a_view_of_one_array() -> None:
    made = make_federation(load_source("digits"), partition="iid", clients=10, seed=0)
    assert made.train[3].untyped_storage().data_ptr() == made.train.values.untyped_storage().data_ptr()


def test_ragged_lists_know_their_sizes_and_refuse_others() -> None:
    lists = Ragged(torch.tensor([0, 2, 2, 5]), torch.tensor([4, 1, 7, 8, 9]))
    assert len(lists) == 3
    assert [lists[k].tolist() for k in range(3)] == [[4, 1], [], [7, 8, 9]]
    assert lists.sizes().tolist() == [2, 0, 3]
    assert lists.owners().tolist() == [0, 0, 2, 2, 2]
    with pytest.raises(IndexError):
        lists[3]


def test_tables_count_labels_of_the_first_clients() -> None:
    made = make_federation(load_source("digits"), partition="dirichlet:0.3", clients=8, seed=0)
    table = made.table()
    assert table.shape == (8, 10)
    assert torch.equal(made.table(3), table[:3])
    for k in range(8):
        assert torch.equal(made.class_counts(k), table[k])
        assert int(table[k].sum()) == len(made.train[k])
    assert int(made.local_test_table().sum()) == len(made.local_test.values)


def test_batches_are_model_ready() -> None:
    made = make_federation(load_source("digits"), partition="iid", clients=10, seed=0)
    x, y = made.train_batch(made.train[0])
    assert x.shape == (len(made.train[0]), 1, 8, 8)
    assert x.dtype == torch.float32
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.bincount(y, minlength=10), made.class_counts(0))
    x, y = made.local_test_batch(made.local_test[0])
    assert len(x) == len(y) == len(made.local_test[0])


def test_names_are_made_when_asked_for() -> None:
    names = make_federation(load_source("digits"), partition="iid", clients=5, seed=0).names
    assert list(names) == ["0", "1", "2", "3", "4"]
    assert names[-1] == "4"
    assert names[1:3] == ["1", "2"]
    with pytest.raises(IndexError):
        names[5]
