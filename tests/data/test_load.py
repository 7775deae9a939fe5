from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedframe.data import SOURCES, ArrayInputs, Samples, Source, load_source
from fedframe.data.load import LOADERS
from fedframe.errors import DataError, SettingError
from tests.data.conftest import sentence

X = np.random.default_rng(0).random((40, 3)).astype(np.float32)
Y = np.arange(40) % 4


def test_digits_come_with_a_stratified_test_set() -> None:
    source = load_source("digits")
    assert (len(source.train), len(source.test or ())) == (1438, 359)
    assert source.input_shape == (1, 8, 8)
    assert source.classes == tuple("0123456789")
    assert source.test is not None
    whole = torch.bincount(source.train.y) + torch.bincount(source.test.y)
    wanted = whole * 359 / 1797
    assert (torch.bincount(source.test.y) - wanted).abs().max() < 1
    x = source.batch(source.train, torch.arange(1438))
    assert abs(float(x.mean())) < 1e-5
    assert float(x.std()) == pytest.approx(1, abs=1e-3)


def test_the_seed_decides_on_the_test_set() -> None:
    first, again, other = (load_source((X, Y), seed=seed) for seed in (1, 1, 2))
    assert isinstance(first.train.x, ArrayInputs)
    assert isinstance(again.train.x, ArrayInputs)
    assert isinstance(other.train.x, ArrayInputs)
    assert torch.equal(first.train.x.tensor, again.train.x.tensor)
    assert not torch.equal(first.train.x.tensor, other.train.x.tensor)


def test_mean_and_std_come_from_the_training_data_alone() -> None:
    source = load_source((X, Y, X + 100, Y))
    torch.testing.assert_close(source.mean, torch.from_numpy(X.mean(0)))


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((40, 6), (6,)),
        ((40,), (1,)),
        ((40, 8, 7), (8, 7, 1)),
        ((40, 8, 7, 3), (8, 7, 3)),
        ((40, 3, 8, 7), (8, 7, 3)),
        ((40, 1, 8, 8), (8, 8, 1)),
        ((40, 8, 7, 2), (8, 7, 2)),
        ((40, 2, 8, 7), (8, 7, 2)),
    ],
)
def test_layouts_are_recognised(shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random(shape)
    source = load_source((values, Y, values, Y))
    assert source.train.x.shape == stored
    assert source.train.x.take(torch.arange(2)).dtype == torch.float32
    if len(shape) == 4 and source.input_shape == shape[1:]:
        raw = source.train.x.take(torch.tensor([5]))[0]
        torch.testing.assert_close(raw.permute(2, 0, 1).numpy(), values[5].astype(np.float32))


def test_uint8_stays_uint8_and_labels_may_be_texts() -> None:
    values = torch.arange(40 * 4, dtype=torch.uint8).view(40, 2, 2)
    source = load_source((values, np.array(["cat", "dog"] * 20)))
    assert source.train.x.take(torch.arange(1)).dtype == torch.uint8
    assert source.classes == ("cat", "dog")


def test_labels_with_gaps_become_indices_with_names() -> None:
    source = load_source({"x_train": X, "y_train": Y * 10 - 10, "x_test": X, "y_test": Y * 10 - 10})
    assert source.classes == ("-10", "0", "10", "20")
    assert torch.equal(source.train.y, torch.from_numpy(Y))


class Pairs(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i >= 40:
            raise IndexError
        return torch.from_numpy(X[i]), int(Y[i])


@pytest.mark.parametrize("dataset", [Pairs(), TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))])
def test_datasets_are_read(dataset: Dataset[tuple[torch.Tensor, int]]) -> None:
    pair = load_source((dataset, dataset))
    assert (len(pair.train), len(pair.test or ())) == (40, 40)
    torch.testing.assert_close(pair.train.x.take(torch.arange(40)).numpy(), X)
    alone = load_source(dataset, test_share=0.5)
    assert (len(alone.train), len(alone.test or ())) == (20, 20)


def test_users_may_be_texts_and_follow_their_rows() -> None:
    users = np.array([f"site {i % 5}" for i in range(40)])
    source = load_source({"x": X, "y": Y, "user": users})
    assert source.user_names == tuple(f"site {i}" for i in range(5))
    assert source.train.user is not None
    rows = source.train.x.take(torch.arange(len(source.train))).numpy()
    for row, user in zip(rows, source.train.user, strict=True):
        assert users[np.flatnonzero((row == X).all(1))[0]] == source.user_names[user]


def test_a_source_passes_as_it_is() -> None:
    source = load_source((X, Y))
    assert load_source(source) is source
    bare = Source("own", Samples(ArrayInputs(torch.from_numpy(X)), torch.from_numpy(Y)), None,
                  ("a", "b", "c", "d"), torch.zeros(3), torch.ones(3))  # fmt: skip
    assert len(load_source(bare).test or ()) == 8


BAD = X.copy()
BAD[7, 1] = np.nan


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ((BAD, Y), "first in row 7"),
        ((X, Y[:5]), "x has 40 rows and y has 5"),
        ((X, Y, X[:, :2], Y), "they must agree"),
        ((X[:0], Y[:0]), "holds no samples"),
        ((X, np.where(Y == 0, np.nan, Y)), "fractions"),
        ((X, np.stack([Y, Y], axis=1).astype(str)), "one value per sample"),
        ((np.array([object()] * 40), Y), "type object"),
        ((X.astype(complex), Y), "type complex128"),
        ((np.zeros((40, 1, 2, 3, 4)), Y), "use (n, d), (n, H, W)"),
        ({"x_train": X}, "lacks y_train"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "lacks y_test"),
        ({"x_train": X, "y_train": Y, "user_train": Y[:3]}, "user has 3"),
        ((X[:4], Y[:4]), "no test set"),
    ],
)
def test_bad_arrays_end_in_a_sentence(data: object, part: str) -> None:
    assert part in sentence(lambda: load_source(data), DataError)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ("minst", "did you mean 'mnist'"),
        ("npz", "write npz:PATH"),
        ("digits:3", "write digits alone"),
        (7, "is a int"),
        ((1, 2, 3), "is a tuple"),
        ({"x_trian": X}, "unknown name 'x_trian'"),
    ],
)
def test_bad_specs_end_in_a_sentence(data: object, part: str) -> None:
    assert part in sentence(lambda: load_source(data), SettingError)


def test_bad_shares_and_options_end_in_a_sentence(tmp_path: Path) -> None:
    assert "test_share" in sentence(lambda: load_source("digits", test_share=1.0), SettingError)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    text = sentence(lambda: load_source(f"npz:{tmp_path}/a.npz?size=3"), SettingError)
    assert "unknown option 'size'" in text
    assert "there is no" in sentence(lambda: load_source(f"npz:{tmp_path}/b.npz"), DataError)


def test_every_listed_source_has_a_loader() -> None:
    assert [name.partition(":")[0] for name in SOURCES] == list(LOADERS)
