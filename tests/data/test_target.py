"""Numbers and several labels per sample: what data are for, their scale, and the strata that stand for classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, load_linnerud

from fedframe.data import load_source, make_federation
from fedframe.data.new_client import load_new_client
from fedframe.data.target import encode_target, find_task
from fedframe.errors import DataError, FedframeError, SettingError
from fedframe.network.node_data import form_of
from tests.data.conftest import sentence

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(120, 4)).astype(np.float32)
LABELS = (DRAW.random((120, 3)) < (0.5, 0.3, 0.1)).astype(np.int64)


def write_table(path: Path, header: str, columns: list[Any]) -> str:
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return f"csv:{path}"


@pytest.mark.parametrize(
    ("y", "asked", "task"),
    [
        (np.array([0.5, 1.0, 2.0]), "auto", "regression"),
        (np.array([0.0, 1.0, 2.0]), "auto", "classification"),  # whole numbers may be classes
        (np.array([0.0, 1.0, 2.0]), "regression", "regression"),
        (np.array(["a", "b"]), "auto", "classification"),
        (np.array([[1, 0], [1, 1]]), "auto", "multilabel"),
        (np.array([[1.5, 0], [1, 1]]), "auto", "regression"),
        (np.array([[1], [0]]), "auto", "classification"),
    ],
)
def test_the_task_is_what_labels_plainly_are(y: Any, asked: str, task: str) -> None:
    assert find_task(asked, y, "y") == task


def test_classes_written_as_one_hot_rows_are_asked_about() -> None:
    assert "argmax" in sentence(lambda: load_source((X[:30], np.eye(3)[np.arange(30) % 3])), DataError)


def test_numbers_are_learned_with_mean_0_and_deviation_1_and_come_back_in_their_units() -> None:
    y = 1000 + 50 * X[:, 0].astype(np.float64)
    source = load_source((X, y), seed=3)
    assert source.task == "regression"
    assert source.outputs == ("target",)
    assert source.target is not None
    assert source.train.values is not None
    learned = source.train.values.double().numpy()
    np.testing.assert_allclose([learned.mean(), learned.std()], [0, 1], atol=1e-5)
    units = source.target.unscaled(source.train.values)[:, 0].double().numpy()
    rows = [int(np.flatnonzero((x == X).all(1))[0]) for x in source.train.x.take(torch.arange(len(units))).numpy()]
    np.testing.assert_allclose(units, y[rows], rtol=1e-6)
    again = load_source(source, seed=3, data_share=0.5)  # a source loaded anew keeps the units
    assert again.target is not None
    assert float(again.target.mean[0]) == pytest.approx(1000, abs=30)  # type: ignore[index]


@given(st.lists(st.floats(-1e6, 1e6), min_size=25, max_size=300), st.integers(0, 5))
def test_strata_of_numbers_are_in_order_and_about_equal(values: list[float], ties: int) -> None:
    y = np.array([*values, *([values[0]] * ties)])
    found = encode_target("regression", y, None, ("t",), "y")
    order = np.argsort(y, kind="stable")
    assert (np.diff(found.y[order]) >= 0).all()
    assert found.y.max() < len(found.strata)
    assert len(set(found.strata)) == len(found.strata)
    if len(np.unique(y)) == len(y):
        counts = np.bincount(found.y, minlength=len(found.strata))
        assert counts.max() - counts.min() <= 2


def test_the_stratum_of_labels_is_the_rarest_one() -> None:
    found = encode_target("multilabel", LABELS, None, ("a", "b", "c"), "y")
    for row, stratum in zip(LABELS, found.y, strict=True):
        held = [c for c in np.argsort(LABELS.sum(0), kind="stable") if row[c]]
        assert found.strata[stratum] == ("none" if not held else "abc"[held[0]])


def test_partitions_go_by_ranges_of_the_number_and_say_so() -> None:
    y = X[:, 0].astype(np.float64)
    source = load_source((X, y))
    federation = make_federation(source, partition="dirichlet:0.1", clients=4, seed=0, min_size=5)
    assert any("10 ranges" in note or "ranges of 'target'" in note for note in federation.notes)
    means = [float(source.train.targets[federation.train[k]].mean()) for k in range(4)]
    iid = make_federation(source, partition="iid", clients=4, seed=0)
    spread = [float(source.train.targets[iid.train[k]].mean()) for k in range(4)]
    assert np.std(means) > 2 * np.std(spread)  # clients disagree in the number
    refused = sentence(lambda: make_federation(source, partition="longtail:10+iid", clients=4, seed=0), SettingError)
    assert "long tail is about classes" in refused


def test_several_columns_of_a_table_are_labels(tmp_path: Path) -> None:
    data = write_table(tmp_path / "t.csv", "x0,x1,red,green,blue", [X[:, 0], X[:, 1], *LABELS.T])
    source = load_source(data, label="red, blue")
    assert (source.task, source.outputs) == ("multilabel", ("red", "blue"))
    assert source.columns == ("x0", "x1", "green")
    assert {tuple(row) for row in source.train.targets.int().tolist()} <= {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert "no column 'bleu'" in sentence(lambda: load_source(data, label="red,bleu"), SettingError)
    assert "comes twice" in sentence(lambda: load_source(data, label="red,red"), SettingError)


def test_real_tables_of_numbers() -> None:
    x, y = load_linnerud(return_X_y=True)
    source = load_source((np.tile(x, (3, 1)), np.tile(y, (3, 1))), task="regression")
    assert source.outputs == ("0", "1", "2")
    assert source.train.targets.shape[1] == 3


def test_a_column_of_many_whole_numbers_is_asked_about(tmp_path: Path) -> None:
    table = load_diabetes(scaled=False)
    data = write_table(tmp_path / "d.csv", ",".join([*table.feature_names, "y"]), [*table.data.T, table.target])
    assert "Set task = regression" in sentence(lambda: load_source(data), DataError)
    assert load_source(data, task="regression").task == "regression"
    assert len(load_source(data, task="classification").classes) == 214


def test_a_source_of_classes_refuses_another_task() -> None:
    said = sentence(lambda: load_source("digits", task="regression"), SettingError)
    assert "'digits' are for classification" in said


@pytest.mark.parametrize(
    ("y", "asked", "part"),
    [
        (np.array([1.5, np.nan] * 10), "regression", "NaN"),
        (np.array([0, 2] * 10), "multilabel", "other values than 0 and 1"),
        (np.array(["a", "b"] * 10), "regression", "takes numbers"),
        (np.array([1e300, 2.0] * 10), "regression", "float32"),
    ],
)
def test_targets_that_cannot_be_learned_end_in_a_sentence(y: Any, asked: str, part: str) -> None:
    assert part in sentence(lambda: load_source((X[:20], y), task=asked), FedframeError)


def test_a_new_client_has_the_runs_units(tmp_path: Path) -> None:
    y = 100 + 7 * X[:, 1].astype(np.float64)
    source = load_source((X, y))
    assert source.target is not None
    other = load_new_client((X[:40], y[:40]), form_of(source), share=0.25, default_share=0.25)
    units = source.target.unscaled(other.source.train.targets)[:, 0].double()
    torch.testing.assert_close(units, torch.from_numpy(y[:40]), rtol=1e-5, atol=1e-4)
    assert len(other.local_test[0]) == 10
    said = sentence(
        lambda: load_new_client((X[:40], LABELS[:40]), form_of(source), share=0.2, default_share=0.2), DataError
    )
    assert "takes numbers" in said or "targets" in said
