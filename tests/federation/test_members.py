"""What members say of themselves before the first round: impossible sizes are refused, large ones cost nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from fedframe.core.message import Message
from fedframe.errors import RunError
from fedframe.federation.create import form_from_description
from fedframe.federation.start import MAX_SAMPLES, check_members_again, member_record
from fedframe.network.envelope import decode_envelope, encode_envelope
from fedframe.network.node_data import federation_without_data
from tests.network.in_process import make, remote_engine


@pytest.mark.parametrize("size", [10**30, 10**14, MAX_SAMPLES + 1, -1, 1.0, "3", None])
@pytest.mark.parametrize("key", ["train", "test"])
def test_numbers_of_samples_that_cannot_be_right_are_refused(key: str, size: Any) -> None:
    with pytest.raises(RunError, match="north did not say how many samples it has, from 0 to 1,000,000,000"):
        member_record("north", {"train": 5, "test": 2, key: size})


def test_only_what_is_known_is_kept_of_a_first_reply() -> None:
    said: dict[str, Any] = {"train": 5, "test": 2, "version": "1", "template": "ab", "key": "cd"}
    assert member_record("north", {**said, "name": "south", "more": "x"}) == {"name": "north", **said}
    with pytest.raises(RunError, match="no training samples"):
        member_record("north", {"train": 0, "test": 2})


@pytest.mark.parametrize("other", [False, True])
def test_a_run_does_not_go_on_with_a_member_whose_key_is_another(tmp_path: Path, other: bool) -> None:
    job, _ = make("scaffold", tmp_path / "run", secure=True)
    engine = remote_engine(job, tmp_path / "nodes", 4)
    if not other:
        check_members_again(engine)
        return
    engine.keys = {**engine.keys, 2: "0" * 64}
    with pytest.raises(RunError, match=r"2 has a different key for secure aggregation .* new training with --new"):
        check_members_again(engine)


def test_a_server_of_many_samples_takes_no_memory_for_them(tmp_path: Path) -> None:
    form = form_from_description("a,b,c", "6", "0", "1")
    many = federation_without_data(form, ["x", "y", "z"], [MAX_SAMPLES] * 3, [MAX_SAMPLES] * 3, None)
    assert many.train.sizes().tolist() == [MAX_SAMPLES] * 3
    assert len(many.local_test[2]) == MAX_SAMPLES
    assert all(rows.values.untyped_storage().nbytes() <= 8 for rows in (many.train, many.local_test))
    job, _ = make("fedavg", tmp_path / "run")
    began = time.process_time()
    first = replace(job, federation=many).fingerprint()
    assert time.process_time() - began < 10.0  # it does not go through 48 GB of rows
    few = federation_without_data(form, ["x", "y", "z"], [MAX_SAMPLES] * 2 + [7], [0, 0, 0], None)
    assert replace(job, federation=few).fingerprint() != first


def test_a_first_reply_of_any_size_passes_the_wire_only_below_64_bits() -> None:
    def through(size: int) -> object:
        payload = encode_envelope([Message("hello", 0, 1, {"x": torch.zeros(1)}, {"train": size})], {})
        return decode_envelope(payload)[0][0].numbers["train"]

    assert through(2**63 - 1) == 2**63 - 1
    with pytest.raises(Exception, match="'train' of a message is not a plain"):
        through(10**30)
