"""Malformed input of every kind: one sentence or a result that is right, never a traceback and never silence.

Examples are drawn from a fixed seed, so that a failure is the same everywhere: about 2,600 in all.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedframe.core.message import Message
from fedframe.data import load_source
from fedframe.errors import FedframeError, ProtocolError
from fedframe.federation.agreement import Agreement
from fedframe.federation.folder import FederationFolder
from fedframe.federation.kit import Kit
from fedframe.federation.members import renewed
from fedframe.methods.recipes import make_method
from fedframe.models.registry import build_net
from fedframe.models.weights import weights_digest
from fedframe.network.envelope import decode_envelope, encode_envelope
from fedframe.network.node_request import NodeRequest, decode_replies
from fedframe.runs import round_lines
from fedframe.runs.folder import CONFIG, RunFolder
from fedframe.runs.predictor import read_arrays
from fedframe.settings import Settings, check, parse_config, read_config
from fedframe.util.durable import read_records
from fedframe.util.files import read_json, read_tensors, write_json, write_tensors

pytestmark = pytest.mark.slow
FUZZ: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
}

REFUSED = object()
ODD = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "nan", "inf", "\udcff", "a:b", "x.py:Y", "dirichlet:-1", "classes:0", "../../etc", "\0", "1e400"]
    )
    | st.lists(st.integers(), max_size=3)
    | st.dictionaries(st.text(max_size=5), st.integers(), max_size=3)
)
NAMES = st.sampled_from(sorted(Settings.model_fields)) | st.text(max_size=12)


def one_sentence(error: BaseException) -> bool:
    text = str(error)
    return bool(text.strip()) and "Traceback" not in text and len(text) < 2000


def attempt(use: Callable[[], Any], kind: type[FedframeError] = FedframeError) -> Any:
    """What something gives; REFUSED if that is one sentence. Any other error is raised."""
    try:
        return use()
    except kind as error:
        if not one_sentence(error):
            raise AssertionError(f"no sentence: {error}") from error
        return REFUSED


def refused(use: Callable[[], Any]) -> bool:
    """Whether something is refused in a sentence."""
    return attempt(use) is REFUSED


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that are not these: some flipped, cut, doubled, put in, or others altogether."""
    way = draw(st.sampled_from(["flip", "cut", "insert", "zero", "other", "double"]))
    place = draw(st.integers(0, max(0, len(content) - 1)))
    if way == "flip":
        return content[:place] + bytes([content[place] ^ (1 << draw(st.integers(0, 7)))]) + content[place + 1 :]
    if way == "cut":
        return content[:place]
    if way == "insert":
        return content[:place] + draw(st.binary(min_size=1, max_size=8)) + content[place:]
    if way == "zero":
        return content[:place] + b"\0" * min(16, len(content) - place) + content[place + 16 :]
    return draw(st.binary(max_size=64)) if way == "other" else content + content


# -- settings ----------------------------------------------------------------------------------------------------------
@settings(max_examples=400, **FUZZ)
@given(st.dictionaries(NAMES, ODD, min_size=1, max_size=4))
def test_settings_are_refused_in_a_sentence_or_are_what_was_given(values: dict[str, Any]) -> None:
    found = attempt(lambda: check(dict(values)))
    if found is REFUSED:
        return
    assert set(values) <= set(Settings.model_fields)
    assert check(found.model_dump()) == found
    numbers = [value for value in found.model_dump().values() if isinstance(value, int)]
    assert all(0 <= value < 1 << 63 for value in numbers)
    assert all(getattr(found, name) == value for name, value in values.items() if isinstance(value, bool | int | float))


@settings(max_examples=200, **FUZZ)
@given(
    st.binary(max_size=80)
    | st.recursive(ODD, lambda inner: st.lists(inner, max_size=3)).map(lambda v: repr(v).encode("utf-8", "replace"))
)
def test_config_files_are_refused_in_a_sentence_or_hold_settings(content: bytes) -> None:
    def use() -> None:
        assert isinstance(parse_config(content, Path("x.yaml")), dict)

    refused(use)


@settings(max_examples=100, **FUZZ)
@given(st.text(alphabet=st.sampled_from("fedavgprox+:._ py/0\0"), max_size=24))
def test_names_of_methods_are_refused_in_a_sentence(name: str) -> None:
    refused(lambda: make_method(name, {}))


@pytest.mark.parametrize("name", ["rounds", "clients", "epochs", "batch", "seed", "workers", "steps", "nodes"])
def test_absurd_numbers_are_refused(name: str) -> None:
    for value in (10**18 if name != "seed" else 10**19, -1, 10**5000, float("inf"), float("nan")):
        assert refused(lambda value=value: check({name: value}))  # type: ignore[misc]


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"{a: " * 50_000, b"a: " + b"9" * 10_000, b"a: &a [*a]", b"\xff\xfe"]
)
def test_deep_and_endless_configs_are_refused(content: bytes) -> None:
    def use() -> None:
        check(parse_config(content, Path("x.yaml")))

    assert refused(use)


# -- files -------------------------------------------------------------------------------------------------------------
@settings(max_examples=300, **FUZZ)
@given(st.data())
def test_damaged_tensor_files_are_refused_or_unchanged(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"model": torch.arange(6.0)}, {"round": 2})
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    found = attempt(lambda: read_tensors(path))
    if found is not REFUSED:
        assert torch.equal(found[0]["model"], torch.arange(6.0))
        assert found[1]["round"] == 2


@settings(max_examples=250, **FUZZ)
@given(st.data())
def test_damaged_json_files_are_refused_or_unchanged(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"scores": [0.5, 0.25], "name": "north"})
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    found = attempt(lambda: read_json(path))
    if found is not REFUSED and found:  # nothing in it: a file that never had a checksum
        assert (found["scores"], found["name"]) == ([0.5, 0.25], "north")


@settings(max_examples=150, **FUZZ)
@given(st.data())
def test_damaged_settings_of_a_run_are_refused_or_unchanged(tmp_path: Path, data: st.DataObject) -> None:
    folder = RunFolder(tmp_path)
    folder.write_settings(check({"rounds": 7, "lr": 0.25}))
    path = tmp_path / CONFIG
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    assert attempt(folder.settings) in (REFUSED, check({"rounds": 7, "lr": 0.25}))


@settings(max_examples=100, **FUZZ)
@given(st.data())
def test_damaged_lines_are_seen(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"round": round, "loss": 1 / round} for round in (1, 2, 3)]
    round_lines.write(path, lines)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    found = round_lines.read(path)
    for line in found.good:
        assert {key: line[key] for key in ("round", "loss")} in lines


@settings(max_examples=100, **FUZZ)
@given(st.data())
def test_damaged_arrays_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.arange(12.0).reshape(4, 3), y=np.array([0, 1, 0, 1]))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    refused(lambda: load_source(f"npz:{path}"))
    refused(lambda: read_arrays(path))


def test_things_that_are_no_files_and_labels_that_are_no_text_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000), }"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    x = np.zeros((4, 2), np.float32)
    assert refused(lambda: load_source(f"npz:{tmp_path / 'pipe.npz'}"))
    assert refused(lambda: read_arrays(tmp_path / "huge.npy"))
    (tmp_path / "deep.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 9000) + b"(" * 9000)
    with zipfile.ZipFile(tmp_path / "deep.npz", "w") as file:
        file.write(tmp_path / "deep.npy", "x.npy")
    assert refused(lambda: read_arrays(tmp_path / "deep.npy"))
    assert refused(lambda: load_source(f"npz:{tmp_path / 'deep.npz'}"))
    for net in ("mlp:" + "9" * 30, f"mlp:{10**17}"):
        assert refused(lambda net=net: build_net(net, (64,)))  # type: ignore[misc]
    assert refused(lambda: load_source((x, np.array(["a", "b", "\udcff", "a"]))))
    assert refused(lambda: load_source((x, np.array([b"a", b"\xff\xfe", b"b", b"a"]))))


def test_pipes_in_the_place_of_any_file_that_a_person_names_are_refused(tmp_path: Path) -> None:
    """Reading one would wait for ever."""
    os.mkfifo(pipe := tmp_path / "pipe")
    (node := tmp_path / "node").mkdir()
    os.mkfifo(node / "node.key")
    os.mkfifo(tmp_path / "federation.yaml")
    for use in (
        lambda: Kit.read(pipe),
        lambda: Kit.read(node),
        lambda: FederationFolder(tmp_path).agreement(),
        lambda: renewed(SimpleNamespace(), pipe),  # type: ignore[arg-type]
        lambda: weights_digest(pipe),
        lambda: read_records(pipe),
        lambda: read_config(pipe),
    ):
        assert refused(use)


# -- requests and replies ----------------------------------------------------------------------------------------------
REQUEST = NodeRequest(
    "r", Message("train", 1, -1, {"model": torch.arange(4.0)}, {"lr": 0.1}), {"train": [0]}, {0: 0}, None, 5
)
REPLY = Message("train", 1, 0, {"update": torch.arange(4.0)}, {"samples": 3, "loss": 0.5})


@settings(max_examples=300, **FUZZ)
@given(st.data())
def test_damaged_requests_and_replies_are_refused_or_well_formed(data: st.DataObject) -> None:
    request = data.draw(damaged(REQUEST.to_bytes()))
    reply = data.draw(damaged(encode_envelope([REPLY], {"run": "r"})))
    attempt(lambda: NodeRequest.from_bytes(request), ProtocolError)
    attempt(lambda: decode_replies(reply, REQUEST, 1 << 20), ProtocolError)


@settings(max_examples=200, **FUZZ)
@given(st.dictionaries(st.sampled_from(["run", "tasks", "seen", "number", "circle", "x"]), ODD, max_size=5))
def test_requests_with_odd_notes_are_refused_or_well_formed(notes: dict[str, Any]) -> None:
    try:
        content = encode_envelope([REQUEST.request], notes)
    except (ValueError, FedframeError):
        return
    found = attempt(lambda: NodeRequest.from_bytes(content), ProtocolError)
    assert found is REFUSED or (isinstance(found.run, str) and isinstance(found.tasks, dict))


@settings(max_examples=100, **FUZZ)
@given(st.dictionaries(st.sampled_from(["federation", "host", "port", "members", "data", "settings"]), ODD, max_size=6))
def test_agreements_with_odd_values_are_refused(values: dict[str, Any]) -> None:
    text = yaml.safe_dump(json.loads(json.dumps(values)))
    assert refused(lambda: Agreement.read(text, "federation.yaml"))


@settings(max_examples=50, **FUZZ)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_kit_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kit.zip").write_bytes(content)
    assert refused(lambda: Kit.read(tmp_path / "kit.zip"))
    assert refused(lambda: decode_envelope(content))
