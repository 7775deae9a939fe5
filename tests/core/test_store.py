from __future__ import annotations

from pathlib import Path

import torch

from fedframe.core.private_state import Store


def state(value: float) -> dict[str, torch.Tensor]:
    return {"c": torch.full((3,), value)}


def test_client_without_state_starts_empty(tmp_path: Path) -> None:
    assert Store(tmp_path).load(5, before=1) == {}


def test_newest_earlier_round_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for round in (1, 4, 6):
        store.save(123456, round, state(round))
    assert float(store.load(123456, before=7)["c"][0]) == 6
    assert float(store.load(123456, before=6)["c"][0]) == 4


def test_round_that_was_cut_off_is_invisible_to_the_resumed_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(1, 2, state(2.0))
    store.save(1, 3, state(666.0))  # the server never finished round 3
    assert float(store.load(1, before=3)["c"][0]) == 2.0


def test_only_three_states_of_a_client_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for round in range(1, 10):
        store.save(7, round, state(round))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3
    assert not list(tmp_path.rglob("*.part"))
