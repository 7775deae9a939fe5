"""Masks for secure aggregation: sums come out exactly, single replies are noise, and streams are told once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from fedframe.errors import DataError
from fedframe.network.masks import (
    FRACTION_BITS,
    Masker,
    MaskingGroup,
    RingVector,
    from_fixed_point,
    to_fixed_point,
    unmask,
)

CONTEXT = "ab" * 32
ROUND = "run-train-1"


def maskers(folder: Path, count: int) -> tuple[list[Masker], MaskingGroup]:
    made = [Masker(folder / str(i), lambda text: None) for i in range(count)]
    return made, MaskingGroup({i: masker.public for i, masker in enumerate(made)}, 1.0, CONTEXT)


def vector(seed: int, count: int = 1000) -> RingVector:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize("gone", [(), (1,), (0, 3)])
def test_the_sum_of_those_who_are_there_comes_out_exactly(tmp_path: Path, gone: tuple[int, ...]) -> None:
    made, group = maskers(tmp_path, 5)
    alive = tuple(i for i in range(5) if i not in gone)
    masked = {i: made[i].mask(vector(i), i, group, ROUND) for i in alive}
    seeds = {i: made[i].reveal_seeds(i, replace(group, alive=alive), 2) for i in alive}
    total = unmask(masked, seeds)
    assert np.array_equal(total, sum((vector(i) for i in alive), np.zeros(1000, dtype=np.uint64)))


def test_what_is_left_out_of_the_telling_leaves_noise(tmp_path: Path) -> None:
    """Without one client's stream, or with what it would tell for others, the sum is as good as random."""
    made, group = maskers(tmp_path, 3)
    masked = {i: made[i].mask(vector(i), i, group, ROUND) for i in range(3)}
    seeds = {i: made[i].reveal_seeds(i, replace(group, alive=(0, 1, 2)), 2) for i in range(3)}
    truth = sum((vector(i) for i in range(3)), np.zeros(1000, dtype=np.uint64))
    for missing in range(3):
        found = unmask(masked, {**seeds, missing: {}})
        bits = np.unpackbits((found ^ truth).view(np.uint8))
        assert 0.48 < bits.mean() < 0.52


def test_a_masked_reply_is_noise_of_its_own_in_every_order(tmp_path: Path) -> None:
    (one, _), group = maskers(tmp_path, 2)
    zero = np.zeros(4000, dtype=np.uint64)
    first, second = (one.mask(zero, 0, replace(group, context=each * 32), each) for each in ("ab", "cd"))
    for found in (first, second, first - second):
        assert 0.49 < np.unpackbits(found.view(np.uint8)).mean() < 0.51


def test_streams_are_told_for_one_set_of_clients_only(tmp_path: Path) -> None:
    made, group = maskers(tmp_path, 4)
    made[0].mask(vector(0), 0, group, ROUND)
    first = made[0].reveal_seeds(0, replace(group, alive=(0, 1, 2)), 2)
    assert first == made[0].reveal_seeds(0, replace(group, alive=(2, 1, 0)), 2)  # a repeated question
    again = Masker(tmp_path / "0", lambda text: None)  # after a restart, too
    with pytest.raises(DataError, match="other clients already"):
        again.reveal_seeds(0, replace(group, alive=(0, 1)), 2)


def test_in_a_round_streams_of_one_order_only_are_told(tmp_path: Path) -> None:
    """The same update in two circles: the difference of the two sums would be the client that is in one of them."""
    made, group = maskers(tmp_path, 4)
    three = replace(group, keys={i: group.keys[i] for i in range(3)}, context="cd" * 32)
    for each in (group, three):
        made[0].mask(vector(0), 0, each, ROUND)
    made[0].reveal_seeds(0, replace(group, alive=(0, 1, 2, 3)), 2)
    with pytest.raises(DataError, match="other clients already"):
        made[0].reveal_seeds(0, replace(three, alive=(0, 1, 2)), 2)


def test_streams_are_not_told_for_too_few(tmp_path: Path) -> None:
    made, group = maskers(tmp_path, 4)
    made[0].mask(vector(0), 0, group, ROUND)
    for alive, fewest in (((0,), 1), ((0, 1), 3), ((1, 2, 3), 2), ((0, 0, 0, 0), 4), ((0, 1, 1), 3)):
        with pytest.raises(DataError, match="at least"):
            made[0].reveal_seeds(0, replace(group, alive=alive), fewest)


def test_streams_are_told_for_the_clients_of_the_order_only(tmp_path: Path) -> None:
    """With others in the place of those who were masked with, one client's update would be left."""
    made, group = maskers(tmp_path, 7)
    few = replace(group, keys={i: group.keys[i] for i in range(4)})
    with pytest.raises(DataError, match="that was answered"):
        made[0].reveal_seeds(0, replace(few, alive=(0, 1, 2, 3)), 4)
    made[0].mask(vector(0), 0, few, ROUND)
    with pytest.raises(DataError, match="its own clients"):
        made[0].reveal_seeds(0, replace(group, alive=(0, 4, 5, 6)), 4)


def test_streams_hide_one_thing_only(tmp_path: Path) -> None:
    made, group = maskers(tmp_path, 3)
    first = made[0].mask(vector(0), 0, group, ROUND)
    again = Masker(tmp_path / "0", lambda text: None)  # after a restart, too
    assert np.array_equal(first, again.mask(vector(0), 0, group, ROUND))  # a repeated question
    with pytest.raises(DataError, match="answered before with other numbers"):
        again.mask(vector(1), 0, group, ROUND)


def test_a_key_that_changes_is_refused(tmp_path: Path) -> None:
    notes: list[str] = []
    masker = Masker(tmp_path / "a", notes.append)
    other, third = (Masker(tmp_path / name, notes.append) for name in "bc")
    masker.check_keys(MaskingGroup({0: masker.public, 1: other.public}, 1.0, CONTEXT), [0], str)
    assert len(notes) == 1
    masker.check_keys(MaskingGroup({0: masker.public, 1: other.public}, 1.0, CONTEXT), [0], str)
    assert len(notes) == 1
    with pytest.raises(DataError, match="key of 1 has changed"):
        masker.check_keys(MaskingGroup({0: masker.public, 1: third.public}, 1.0, CONTEXT), [0], str)
    with pytest.raises(DataError, match="another key of this node"):
        masker.check_keys(MaskingGroup({0: third.public}, 1.0, CONTEXT), [0], str)


def test_fixed_point_keeps_what_float32_has() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 1e-3
    found = from_fixed_point(to_fixed_point(values, 0.1, FRACTION_BITS["weighted"], 10), FRACTION_BITS["weighted"])
    assert float((found - 0.1 * values.double()).abs().max()) <= 2.0**-41


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_values_that_cannot_be_added_up_are_not_sent(bad: float) -> None:
    with pytest.raises(DataError, match="not sent"):
        to_fixed_point(torch.tensor([0.0, bad]), 1.0, FRACTION_BITS["plain"], 3)


@pytest.mark.parametrize(
    "change",
    [{"keys": {"0": "zz"}}, {"keys": {"0": "ab"}}, {"keys": 3}, {"scale": 0.0}, {"scale": "x"}, {"context": "../x"},
     {"alive": [7]}, {"alive": None}, {"alive": [0, 0]}, {"alive": [0, 0.5]}, {"keys": {}},
     {"keys": {"0": "00" * 32, "-1": "11" * 32}}],
)  # fmt: skip
def test_a_circle_that_is_none_is_refused(change: dict[str, Any]) -> None:
    good = MaskingGroup({0: "00" * 32, 1: "11" * 32}, 1.0, CONTEXT).to_json()
    assert MaskingGroup.from_json(good).keys == {0: "00" * 32, 1: "11" * 32}
    with pytest.raises(DataError, match="cannot be read"):
        MaskingGroup.from_json({**good, **change})
