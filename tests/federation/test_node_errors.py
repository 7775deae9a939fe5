"""What the organiser learns of a node's errors."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message as FlowerMessage
from flwr.app import Metadata, RecordDict
from PIL import Image

import fedframe.data.images as images
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import DataError, ProtocolError, RunError
from fedframe.federation.create import form_from_description, new_federation
from fedframe.federation.join import Membership, make_node
from fedframe.federation.kit import Kit
from fedframe.jobs.gather import gather
from fedframe.network.flower.node import public_reason
from fedframe.network.flower.records import to_record
from fedframe.network.node_request import NodeRequest


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "public"),
    [
        (ProtocolError("The request has no learning rate."), "The request has no learning rate."),
        (DataError("/home/ann/patient 7.png is damaged."), "it raised DataError;"),
        (raised(DataError("patient 7.png is damaged"), OSError("not an image: patient 7")), "it raised OSError;"),
        (raised(RunError("Could not write /home/ann/secret: full"), OSError(28, "/home/ann")), "(No space left"),
        (raised(RunError("client 1: ValueError: patient 7"), ValueError("patient 7")), "it raised ValueError;"),
        (KeyError("patient 7"), "it raised KeyError;"),
    ],
)
def test_an_error_is_reported_by_its_kind_only(error: Exception, public: str) -> None:
    text = public_reason(error)
    assert public in text
    assert "patient" not in text
    assert "/home" not in text


def member(folder: Path, method: str) -> Membership:
    """A node whose samples are files named after people."""
    draw = np.random.default_rng(0)
    for name in ("benign", "malignant"):
        (folder / "scans" / name).mkdir(parents=True)
        for number in range(12):
            pixels = draw.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "scans" / name / f"meier_anna_{number}.png")
    form = form_from_description("benign,malignant", "8x8x3", "0.5", "0.25")
    asked = gather({"method": method, "model": "mlp:8", "rounds": 3}, None)
    made = new_federation(folder / "clinic", ["north", "south"], ["127.0.0.1"], 9000, form, asked)
    kit = Kit.read(made.path / "kits" / "north-kit.zip")
    return Membership(kit, f"imagefolder:{folder}/scans?size=8", folder / "north", None, None)


def reported_error(node: Membership, record: RecordDict) -> str:
    """What leaves of an error, and is in the log before."""
    about = Metadata(1, "1", 0, 1, "", "", time.time(), 600.0, "train")
    message: FlowerMessage = FlowerMessage(record, metadata=about)  # type: ignore[call-overload]
    reply = make_node(node, print).reply(message)
    assert reply.has_error()
    assert str(reply.error.reason) in (node.folder / "leaves.log").read_text().splitlines()[-1]
    return str(reply.error.reason)


def request_record(node: Membership, folder: Path, round: int) -> RecordDict:
    job = node.maker.make(folder / "server")
    request = Server(job, InlineEngine(job), print).build_request("train", round)
    return to_record(NodeRequest("run1", request, {"train": [0]}, {0: round - 1}).to_bytes())


def test_a_damaged_image_is_not_reported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_IN_MEMORY", 0)  # as with large sets: files are read while the net trains
    monkeypatch.setattr(images, "CACHE_SIZE", 0)
    node = member(tmp_path, "fedavg")
    record = request_record(node, tmp_path, 1)
    for path in (tmp_path / "scans" / "malignant").glob("*.png"):
        path.write_bytes(b"\x89PNG torn")
    text = reported_error(node, record)
    assert "it raised" in text
    for secret in ("meier", "malignant", str(tmp_path), "png"):
        assert secret not in text


def test_a_torn_state_file_is_not_reported_by_its_path(tmp_path: Path) -> None:
    node = member(tmp_path, "scaffold")
    answer = node.request_handler(print)
    job = node.maker.make(tmp_path / "server")
    request = Server(job, InlineEngine(job), print).build_request("train", 1)
    answer(NodeRequest("run1", request, {"train": [0]}, {0: 0}).to_bytes())
    (state,) = (tmp_path / "north" / "runs" / "run1" / "clients").rglob("*.safetensors")
    state.write_bytes(b"torn")
    text = reported_error(node, request_record(node, tmp_path, 2))
    assert "it raised" in text
    assert "/" not in text


def test_what_is_wrong_with_a_request_is_reported(tmp_path: Path) -> None:
    node = member(tmp_path, "fedavg")
    assert "not a Fedframe message" in reported_error(node, to_record(b"garbage"))
    assert "something else than a message" in reported_error(node, RecordDict())
