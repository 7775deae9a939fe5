"""Masks for secure aggregation: sums come out exactly, single replies are noise, and seeds are revealed once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedframe.core.job import agreeing
from fedframe.errors import DataError, ProtocolError
from fedframe.network.masker import Masker, block_size, others_of
from fedframe.network.masks import (
    FRACTION_BITS,
    MaskingGroup,
    RingVector,
    fingerprint,
    from_fixed_point,
    signature_holds,
    to_fixed_point,
    unmask,
    usable_key,
)
from fedframe.network.secure_aggregation import joined_seeds
from fedframe.network.shamir import SHARE_BYTES, join

CONTEXT = "ab" * 32
ROUND = "run-train-1"


def maskers(folder: Path, count: int) -> tuple[list[Masker], MaskingGroup]:
    made = [Masker(folder / str(i), lambda text: None) for i in range(count)]
    return made, MaskingGroup({i: masker.public for i, masker in enumerate(made)}, CONTEXT)


def vector(seed: int, count: int = 1000) -> RingVector:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def agreed(made: list[Masker], group: MaskingGroup, alive: Collection[int], threshold: int = 2) -> MaskingGroup:
    """The group with a list of survivors that all of them have signed."""
    group = replace(group, alive=tuple(alive))
    return replace(group, signatures={i: made[i].sign(i, group, threshold) for i in alive})


def blocks_for(client: int, group: MaskingGroup, shares: dict[int, bytes]) -> dict[int, bytes]:
    """What the server passes on to a client: what each of the others has encrypted for it."""
    size, found = block_size(group), {}
    for sender in group.alive:
        if sender != client:
            place = others_of(sender, group).index(client)
            found[sender] = shares[sender][size * place : size * (place + 1)]
    return found


@pytest.mark.parametrize("gone", [(), (1,), (0, 3)])
def test_the_sum_of_those_who_are_there_comes_out_exactly(tmp_path: Path, gone: tuple[int, ...]) -> None:
    made, group = maskers(tmp_path, 5)
    alive = tuple(i for i in range(5) if i not in gone)
    masked = {i: made[i].mask(vector(i), i, group, ROUND) for i in alive}
    group = agreed(made, group, alive)
    seeds = {i: made[i].reveal(i, group, 2, 2, {}) for i in alive}
    total = unmask(masked, seeds)
    assert np.array_equal(total, sum((vector(i) for i in alive), np.zeros(1000, dtype=np.uint64)))


@pytest.mark.parametrize(("gone", "silent"), [((), (1,)), ((), (0, 6)), ((2,), (5,)), ((2, 3), ())])
def test_who_goes_after_sending_is_made_up_for_by_shares(
    tmp_path: Path, gone: tuple[int, ...], silent: tuple[int, ...]
) -> None:
    """With seven clients and a threshold of five, two may go at any moment."""
    made, group = maskers(tmp_path, 7)
    threshold = agreeing(7)
    alive = tuple(i for i in range(7) if i not in gone)
    masked = {i: made[i].mask(vector(i), i, group, ROUND) for i in alive}
    shares = {i: made[i].shares(i, group, threshold, threshold) for i in alive}
    group = agreed(made, group, alive, threshold)
    speaking = [i for i in alive if i not in silent]
    told = {i: made[i].reveal(i, group, threshold, threshold, blocks_for(i, group, shares)) for i in speaking}
    seeds = {i: {name: s for name, s in each.items() if not name.startswith("shares/")} for i, each in told.items()}
    for client in silent:
        held = {i: each[f"shares/{client}"] for i, each in told.items()}
        found = joined_seeds(held, group, threshold)
        assert found is not None
        assert joined_seeds(dict(list(held.items())[: threshold - 1]), group, threshold) is None
        seeds[client] = found
    total = unmask(masked, seeds)
    assert np.array_equal(total, sum((vector(i) for i in alive), np.zeros(1000, dtype=np.uint64)))


def test_where_all_must_be_in_the_sum_two_thirds_can_make_up_for_who_goes_and_open_no_pair(tmp_path: Path) -> None:
    """A list without somebody is not signed, with whatever signatures; and the pairs' masks hide two of seven."""
    made, group = maskers(tmp_path, 7)
    threshold = agreeing(7)
    masked = {i: made[i].mask(vector(i), i, group, ROUND) for i in range(7)}
    shares = {i: made[i].shares(i, group, 7, threshold) for i in range(7)}
    with pytest.raises(DataError, match="at least 7 clients"):
        made[0].sign(0, replace(group, alive=tuple(range(6))), 7)
    told = replace(group, alive=tuple(range(7)))
    told = replace(told, signatures={i: made[i].sign(i, told, 7) for i in range(5)})  # two have gone since
    found = {i: made[i].reveal(i, told, 7, threshold, blocks_for(i, told, shares)) for i in range(5)}
    seeds = {i: {name: s for name, s in each.items() if not name.startswith("shares/")} for i, each in found.items()}
    for client in (5, 6):
        made_up = joined_seeds({i: each[f"shares/{client}"] for i, each in found.items()}, told, threshold)
        assert made_up is not None
        seeds[client] = made_up
    assert np.array_equal(unmask(masked, seeds), sum((vector(i) for i in range(7)), np.zeros(1000, dtype=np.uint64)))

    def pair_seed(shares: dict[int, bytes]) -> bytes | None:
        """The seed of what clients 5 and 6 have added to each other, as far as all five others can make it."""
        pair, plain = 1 + others_of(5, group).index(6), {}
        for i in range(5):
            opened = ChaCha20Poly1305(made[i].channel(i, 5, 5, group)).decrypt(
                bytes(12), blocks_for(i, told, shares)[5], None
            )
            plain[i + 1] = opened[SHARE_BYTES * pair : SHARE_BYTES * (pair + 1)]
        return join(plain)

    assert pair_seed(shares) != made[5].pair_seed(5, 6, group)
    less = {i: made[i].shares(i, group, threshold, threshold) for i in range(7)}
    assert pair_seed(less) == made[5].pair_seed(5, 6, group)  # as it must be where somebody may be away


def test_shares_are_for_one_client_and_of_what_does_not_cancel(tmp_path: Path) -> None:
    """A block opens for its receiver alone; of a client that is there, no pair with another that is there is told."""
    made, group = maskers(tmp_path, 4)
    for i in range(3):
        made[i].mask(vector(i), i, group, ROUND)
    shares = {i: made[i].shares(i, group, 3, 3) for i in range(3)}
    assert shares[0] == Masker(tmp_path / "0", print).shares(0, group, 3, 3)  # the same whenever they are asked for
    group = agreed(made, group, (0, 1, 2), 3)
    mine, others = blocks_for(1, group, shares), blocks_for(2, group, shares)
    found = made[1].reveal(1, group, 3, 3, mine)
    assert {name for name in found if name.startswith("shares/")} == {"shares/0", "shares/2"}
    assert len(found["shares/0"]) == 2 * 33  # of its own keystream, and of the pair with client 3, which is gone
    assert not any(name.startswith("shares/") for name in made[1].reveal(1, group, 3, 3, {0: others[0], 3: others[0]}))


def test_what_is_left_out_of_the_telling_leaves_noise(tmp_path: Path) -> None:
    """Without one client's seed, or with what it would reveal for others, the sum is as good as random."""
    made, group = maskers(tmp_path, 3)
    masked = {i: made[i].mask(vector(i), i, group, ROUND) for i in range(3)}
    group = agreed(made, group, (0, 1, 2))
    seeds = {i: made[i].reveal(i, group, 2, 2, {}) for i in range(3)}
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


def test_one_list_of_survivors_is_signed_for_ever(tmp_path: Path) -> None:
    made, group = maskers(tmp_path, 4)
    made[0].mask(vector(0), 0, group, ROUND)
    first = made[0].sign(0, replace(group, alive=(0, 1, 2)), 2)
    assert first == made[0].sign(0, replace(group, alive=(0, 1, 2)), 2)  # a repeated question
    again = Masker(tmp_path / "0", lambda text: None)  # after a restart, too
    with pytest.raises(DataError, match="another list of survivors"):
        again.sign(0, replace(group, alive=(0, 1)), 2)


def test_in_a_round_one_request_only_is_signed_for(tmp_path: Path) -> None:
    """The same update in two groups: the difference of the two sums would be the client that is in one of them."""
    made, group = maskers(tmp_path, 4)
    three = replace(group, keys={i: group.keys[i] for i in range(3)}, context="cd" * 32)
    for each in (group, three):
        made[0].mask(vector(0), 0, each, ROUND)
    made[0].sign(0, replace(group, alive=(0, 1, 2, 3)), 2)
    with pytest.raises(DataError, match="or another request"):
        made[0].sign(0, replace(three, alive=(0, 1, 2)), 2)


def test_nothing_is_revealed_without_enough_signatures_under_the_very_list(tmp_path: Path) -> None:
    made, group = maskers(tmp_path, 4)
    for i in range(4):
        made[i].mask(vector(i), i, group, ROUND)
    told = agreed(made, group, (0, 1, 2, 3), 3)
    with pytest.raises(DataError, match="that this node has signed"):  # another list than its own
        made[0].reveal(0, replace(told, alive=(0, 1, 2)), 3, 3, {})
    few = {i: told.signatures[i] for i in (0, 1)}
    forged = dict.fromkeys((0, 1, 2, 3), told.signatures[1])  # one member's, under the names of all
    for signatures in ({}, few, forged):
        with pytest.raises(DataError, match="at least 3 clients have signed"):
            made[0].reveal(0, replace(told, signatures=signatures), 3, 3, {})
    assert "own" in made[0].reveal(0, replace(told, signatures={i: told.signatures[i] for i in (1, 2)}), 3, 3, {})
    assert all(signature_holds(told, i, text) for i, text in told.signatures.items())
    assert not signature_holds(replace(told, context="cd" * 32), 0, told.signatures[0])


def test_lists_are_not_signed_for_too_few(tmp_path: Path) -> None:
    made, group = maskers(tmp_path, 4)
    made[0].mask(vector(0), 0, group, ROUND)
    for alive, fewest in (((0,), 1), ((0, 1), 3), ((1, 2, 3), 2)):
        with pytest.raises(DataError, match="at least"):
            made[0].sign(0, replace(group, alive=alive), fewest)


def test_lists_are_signed_for_the_clients_of_the_request_only(tmp_path: Path) -> None:
    """With others in the place of those who were masked with, one client's update would be left."""
    made, group = maskers(tmp_path, 7)
    few = replace(group, keys={i: group.keys[i] for i in range(4)})
    with pytest.raises(DataError, match="that was answered"):
        made[0].sign(0, replace(few, alive=(0, 1, 2, 3)), 4)
    made[0].mask(vector(0), 0, few, ROUND)
    with pytest.raises(DataError, match="its own clients"):
        made[0].sign(0, replace(group, alive=(0, 4, 5, 6)), 4)


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
    masker.check_keys(MaskingGroup({0: masker.public, 1: other.public}, CONTEXT), [0], str)
    assert len(notes) == 1
    masker.check_keys(MaskingGroup({0: masker.public, 1: other.public}, CONTEXT), [0], str)
    assert len(notes) == 1
    with pytest.raises(DataError, match="key of 1 has changed"):
        masker.check_keys(MaskingGroup({0: masker.public, 1: third.public}, CONTEXT), [0], str)
    half = other.public[:64] + third.public[64:]  # its masks, with somebody else's signatures
    with pytest.raises(DataError, match="key of 1 has changed"):
        masker.check_keys(MaskingGroup({0: masker.public, 1: half}, CONTEXT), [0], str)
    with pytest.raises(DataError, match="another key of this node"):
        masker.check_keys(MaskingGroup({0: third.public}, CONTEXT), [0], str)


def test_a_code_that_was_told_beforehand_is_the_only_one_that_is_taken(tmp_path: Path) -> None:
    other, third = (Masker(tmp_path / name, print) for name in "bc")
    masker = Masker(tmp_path / "a", print, {"1": fingerprint(other.public)})
    with pytest.raises(DataError, match="not the one that this node was told"):
        masker.check_keys(MaskingGroup({0: masker.public, 1: third.public}, CONTEXT), [0], str)
    masker.check_keys(MaskingGroup({0: masker.public, 1: other.public}, CONTEXT), [0], str)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fixed_point_keeps_what_float32_has(weighting: str) -> None:
    values, weight = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 1e-3, 300.0
    weight = weight if weighting == "samples" else 1.0
    bits = FRACTION_BITS[weighting]
    encoded = to_fixed_point(values, weight, bits, 10)
    assert encoded is not None
    found = from_fixed_point(encoded, bits) / weight
    assert float((found - values.double()).abs().max()) <= 1.01 * 2.0 ** -(bits + 1) / weight <= 2e-10


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_values_that_cannot_be_added_up_have_no_fixed_point(bad: float) -> None:
    assert to_fixed_point(torch.tensor([0.0, bad]), 1.0, FRACTION_BITS["plain"], 3) is None


@pytest.mark.parametrize(
    "change",
    [{"keys": {"0": "zz"}}, {"keys": {"0": "ab"}}, {"keys": 3}, {"context": "../x"}, {"signatures": 3},
     {"signatures": {"7": "00" * 64}}, {"alive": [7]}, {"alive": None}, {"alive": [0, 0]}, {"alive": [0, 0.5]},
     {"keys": {}}, {"keys": {"0": "00" * 64, "-1": "11" * 64}}, {"keys": {"0": "00" * 32, "1": "11" * 32}}],
)  # fmt: skip
def test_a_group_that_is_none_is_refused(change: dict[str, Any]) -> None:
    good = MaskingGroup({0: "00" * 64, 1: "11" * 64}, CONTEXT).to_json()
    assert MaskingGroup.from_json(good).keys == {0: "00" * 64, 1: "11" * 64}
    with pytest.raises(DataError, match="cannot be read"):
        MaskingGroup.from_json({**good, **change})


@pytest.mark.parametrize("key", ["00" * 64, "01" + "00" * 63])
def test_a_key_that_gives_no_secret_is_refused_in_a_sentence(tmp_path: Path, key: str) -> None:
    """Points of small order: anybody would know the secret. One member with such a key would fail all the others."""
    masker = Masker(tmp_path, print)
    assert usable_key(masker.public)
    assert not usable_key(key)
    assert not usable_key("11" * 63)
    group = MaskingGroup({0: masker.public, 1: key}, CONTEXT)
    with pytest.raises(ProtocolError, match="key of client 1 is none"):
        masker.mask(np.zeros(3, dtype=np.uint64), 0, group, "run1-train-1")


def test_two_lists_never_both_find_enough_unless_a_third_of_the_clients_lie() -> None:
    """Honest clients sign one list; liars sign both. With three clients it holds against an organiser alone."""
    for clients in range(2, 200):
        threshold, liars = agreeing(clients), -(-clients // 3) - 1 if clients > 3 else 0
        assert 2 * threshold > clients + liars
        assert threshold <= clients
