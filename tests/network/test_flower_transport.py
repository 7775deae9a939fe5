"""Flower's transport, given what a hostile member could have pushed: one node's problem, never the end of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.proto.message_pb2 import Message as Envelope
from flwr.proto.message_pb2 import Metadata as EnvelopeMetadata
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_children_ids_from_object_content,
    get_object_id,
)

import fedframe.network.flower.chunks as chunks
from fedframe.errors import RunError
from fedframe.network.flower.records import KIND, NAME, to_record
from fedframe.network.flower.transport import FlowerTransport
from fedframe.network.transport import Delivery

Pieces = dict[str, bytes]
Change = Callable[[str, list[str], bytes], tuple[str, list[str], bytes]]


def pushed(payload: bytes | RecordDict, reply_to: str = "ticket", error: Error | None = None) -> tuple[str, Pieces]:
    """A reply as a SuperLink holds it: its root and its pieces."""
    metadata = Metadata(
        run_id=1, message_id="", src_node_id=7, dst_node_id=1, reply_to_message_id=reply_to, group_id="1",
        created_at=1.0, ttl=60.0, message_type="train",
    )  # fmt: skip
    record = to_record(payload) if isinstance(payload, bytes) else payload
    message = make_message(metadata, error=error) if error is not None else make_message(metadata, content=record)
    return message.object_id, {name: each.deflate() for name, each in get_all_nested_objects(message).items()}


def remade(root: str, pieces: Pieces, change: Change) -> tuple[str, Pieces]:
    """The same with some pieces changed, and all names above them right again."""
    made: Pieces = {}
    names: dict[str, str] = {}

    def remake(name: str) -> None:
        for child in get_object_children_ids_from_object_content(pieces[name]):
            remake(child)
        head, _, body = pieces[name].partition(HEAD_BODY_DIVIDER)
        kind, children, _ = head.decode().split(HEAD_VALUE_DIVIDER)
        for before, after in names.items():
            body = body.replace(before.encode(), after.encode())
        kind, parts, body = change(kind, [names[child] for child in children.split(",") if child], body)
        head = HEAD_VALUE_DIVIDER.join([kind, ",".join(parts), str(len(body))]).encode()
        content = head + HEAD_BODY_DIVIDER + body
        names[name] = get_object_id(content)
        made[names[name]] = content

    remake(root)
    return names[root], made


class Superlink:
    """What a SuperLink would answer: announced replies, and their pieces."""

    def __init__(self, *replies: tuple[str, str, Pieces]) -> None:
        self.replies = list(replies)
        self.pieces = {name: piece for _, _, pieces in replies for name, piece in pieces.items()}
        self.absent: set[str] = set()
        self.pulled: list[str] = []
        self.confirmed: list[str] = []
        self.node, self.run, self._runtime_client = None, SimpleNamespace(run_id=1), self

    def PullMessages(self, asked: Any) -> Any:  # noqa: N802
        told = [each for each in self.replies if each[0] in asked.message_ids or each[0] == "of another"]
        self.replies = [each for each in self.replies if each not in told]
        return SimpleNamespace(
            messages_list=[Envelope(metadata=EnvelopeMetadata(reply_to_message_id=ticket)) for ticket, _, _ in told],
            message_object_trees=[self.tree(root, pieces) for _, root, pieces in told],
        )

    def tree(self, root: str, pieces: Pieces) -> ObjectTree:
        children = get_object_children_ids_from_object_content(pieces[root]) if root in pieces else []
        return ObjectTree(object_id=root, children=[self.tree(child, pieces) for child in children])

    def PullObject(self, asked: Any) -> PullObjectResponse:  # noqa: N802
        self.pulled.append(asked.object_id)
        if asked.object_id in self.absent:
            return PullObjectResponse(object_found=True, object_available=False)
        found = self.pieces.get(asked.object_id)
        return PullObjectResponse(
            object_found=found is not None, object_available=found is not None, object_content=found or b""
        )

    def ConfirmMessageReceived(self, asked: Any) -> None:  # noqa: N802
        self.confirmed.append(asked.message_object_id)


def collected(root: str, pieces: Pieces, most: int = 1 << 20) -> Delivery:
    """What becomes of one reply, beside a good one that must not suffer."""
    link = Superlink(("ticket", root, pieces), ("good", *pushed(b"good answer")))
    found = {each.ticket: each for each in FlowerTransport(link, str).collect({"ticket": most, "good": most})}
    assert found["good"].content == b"good answer"
    assert set(link.confirmed) >= {root}  # the SuperLink need not keep it
    return found["ticket"]


def changed(kind: str, body: bytes | None = None, children: list[str] | None = None, new: str | None = None) -> Change:
    def change(each: str, parts: list[str], content: bytes) -> tuple[str, list[str], bytes]:
        if each != kind:
            return each, parts, content
        return new or kind, parts if children is None else children, content if body is None else body

    return change


def test_a_reply_of_many_pieces_is_put_together() -> None:
    payload = bytes(range(256)) * 50_000 + bytes(11 << 20)  # with pieces of zeros that are sent once
    assert collected(*pushed(payload), most=len(payload)).content == payload


@pytest.mark.parametrize("kind", ["Message", "RecordDict", "ArrayRecord", "Array"])
@pytest.mark.parametrize("body", [b"", b"{not json", b"\xff\xff\xff", b"[]", b"null", b"{}", b"[" * 100_000])
def test_a_piece_of_junk_is_one_nodes_problem(kind: str, body: bytes) -> None:
    found = collected(*remade(*pushed(b"answer"), changed(kind, body)))
    assert found.content == b""
    assert 0 < len(found.problem) <= 500


@pytest.mark.parametrize("kind", ["Message", "RecordDict", "ArrayRecord", "Array"])
def test_a_frame_without_its_content_is_one_nodes_problem(kind: str) -> None:
    assert collected(*remade(*pushed(b"answer"), changed(kind, children=[]))).problem


@pytest.mark.parametrize("chunks_named", [[1], [0, 7], [-5], ["0"], [None], {"0": 0}, None, 0, [[0]]])
def test_an_array_of_pieces_that_are_not_there_is_one_nodes_problem(chunks_named: Any) -> None:
    body = json.dumps({"dtype": "uint8", "shape": [6], "stype": KIND, "arraychunk_ids": chunks_named}).encode()
    assert collected(*remade(*pushed(b"answer"), changed("Array", body))).problem


def test_what_a_sender_says_it_answers_is_not_believed() -> None:
    assert collected(*pushed(b"answer", reply_to="another ticket")) == Delivery("ticket", b"answer")


def test_a_reply_to_nothing_that_was_asked_is_left_alone() -> None:
    link = Superlink(("of another", *pushed(b"answer")), ("ticket", *pushed(b"mine")))
    assert FlowerTransport(link, str).collect({"ticket": 100}) == [Delivery("ticket", b"mine")]


def test_an_array_that_names_a_piece_many_times_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = bytes(1 << 20)
    body = json.dumps({"dtype": "uint8", "shape": [600 << 20], "stype": KIND, "arraychunk_ids": [0] * 600}).encode()
    monkeypatch.setattr(chunks, "inflate_object_from_contents", lambda *given: pytest.fail("it was put together"))
    root, pieces = remade(*pushed(payload), changed("Array", body))
    link = Superlink(("ticket", root, pieces))
    (found,) = FlowerTransport(link, str).collect({"ticket": 2 << 20})
    assert "larger than the 2,097,152 bytes" in found.problem


def test_a_reply_beyond_its_limit_is_not_pulled_to_its_end() -> None:
    draw = iter(range(10**6))
    payload = b"".join(next(draw).to_bytes(4, "little") * (5 << 18) for _ in range(6))  # six pieces of 5 MB
    link = Superlink(("ticket", *pushed(payload)))
    (found,) = FlowerTransport(link, str).collect({"ticket": 6 << 20})
    assert "larger than the 6,291,456 bytes" in found.problem
    assert len(link.pulled) <= 6


def test_a_reply_of_too_many_pieces_is_not_pulled_at_all() -> None:
    root, pieces = pushed(b"answer")
    link = Superlink(("ticket", root, pieces))
    tree = ObjectTree(object_id=root, children=[ObjectTree(object_id=str(number)) for number in range(1000)])
    link.tree = lambda root, pieces: tree  # type: ignore[method-assign]
    (found,) = FlowerTransport(link, str).collect({"ticket": 1 << 20})
    assert "more than 9 pieces" in found.problem
    assert link.pulled == []


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        RecordDict({NAME: ConfigRecord({"a": 1})}),
        RecordDict({NAME: ArrayRecord({NAME: Array("uint8", (5,), "numpy.ndarray", b"abc")})}),
        RecordDict({NAME: ArrayRecord({NAME: Array("uint8", (5,), KIND, b"abc")})}),
        RecordDict(
            {NAME: ArrayRecord({NAME: Array("uint8", (3,), KIND, b"abc"), "b": Array("uint8", (1,), KIND, b"a")})}
        ),
    ],
)
def test_another_content_than_a_payload_is_refused(record: RecordDict) -> None:
    found = collected(*pushed(record))
    assert found.content == b""
    assert found.problem


def test_an_error_is_told_in_one_short_line() -> None:
    found = collected(*pushed(b"", error=Error(1, "disk\nfull " + "x" * 9000)))
    assert found.problem.startswith("disk full xxx")
    assert len(found.problem) == 500


def test_a_reply_whose_pieces_are_still_to_come_holds_nobody_up() -> None:
    root, pieces = pushed(b"slow answer")
    link = Superlink(("slow", root, pieces), ("good", *pushed(b"good answer")))
    link.absent = {root}
    transport = FlowerTransport(link, str)
    assert transport.collect({"slow": 1 << 20, "good": 1 << 20}) == [Delivery("good", b"good answer")]
    assert transport.collect({"slow": 1 << 20}) == []
    link.absent = set()
    assert transport.collect({"slow": 1 << 20}) == [Delivery("slow", b"slow answer")]
    assert transport.collect({"slow": 1 << 20}) == []


def sent_in_order(root: str, pieces: Pieces) -> list[str]:
    """The pieces as a SuperNode sends them: what stands in something goes before it."""
    below = [
        name
        for child in get_object_children_ids_from_object_content(pieces[root])
        for name in sent_in_order(child, pieces)
    ]
    return list(dict.fromkeys([*below, root]))


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_slow_reply_is_waited_for_while_pieces_come(monkeypatch: pytest.MonkeyPatch, cut_off: bool) -> None:
    """Not longer: its node was killed while it sent them, say, and nothing else would ever show it."""
    payload = b"".join(number.to_bytes(4, "little") * (5 << 18) for number in range(4))  # pieces of 5 MB
    root, pieces = pushed(payload)
    link, clock = Superlink(("ticket", root, pieces)), [1000.0]
    monkeypatch.setattr(chunks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    to_come = sent_in_order(root, pieces)
    assert len(to_come) == 8
    link.absent = set(to_come)
    transport, found = FlowerTransport(link, str), list[Delivery]()
    for number, name in enumerate(to_come):
        assert found == []
        clock[0] += chunks.STALLED - 1
        if not (cut_off and number >= 3):
            link.absent.discard(name)
        found = transport.collect({"ticket": 30 << 20})
        if cut_off and found:
            break
    if cut_off:
        assert "stopped coming" in found[0].problem
        assert clock[0] - 1000.0 < 6 * chunks.STALLED
        assert link.confirmed == [root]
    else:
        assert found == [Delivery("ticket", payload)]
        assert clock[0] - 1000.0 > 7 * (chunks.STALLED - 1)


def test_what_comes_for_a_request_that_nobody_asks_for_any_more_is_deleted_there() -> None:
    """It was answered by its second copy, or came too late; the SuperLink would keep it until the run ends."""
    link = Superlink()
    transport = FlowerTransport(link, str)
    assert transport.collect({"late": 1 << 20, "good": 1 << 20}) == []
    root, pieces = pushed(b"too late")
    link.replies = [("late", root, pieces)]
    assert transport.collect({"good": 1 << 20}) == []
    assert link.confirmed == [root]
    link.replies = [("late", "another", {}), ("good", *pushed(b"good"))]
    link.pieces |= pushed(b"good")[1]
    assert transport.collect({"good": 1 << 20}) == [Delivery("good", b"good")]
    assert len(link.confirmed) == 2  # of "late" no more is asked


def test_a_half_reply_that_nobody_asks_for_any_more_is_deleted_there() -> None:
    root, pieces = pushed(b"slow")
    link = Superlink(("slow", root, pieces))
    link.absent = {root}
    transport = FlowerTransport(link, str)
    assert transport.collect({"slow": 1 << 20, "other": 1 << 20}) == []
    assert transport.collect({"other": 1 << 20}) == []
    assert link.confirmed == [root]


def status(code: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("no", request=httpx.Request("POST", "https://x"), response=httpx.Response(code))


def test_a_superlink_that_says_no_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Superlink()

    def refuse(asked: Any) -> Any:
        raise status(401)

    monkeypatch.setattr(link, "PullMessages", refuse)
    with pytest.raises(RunError, match="has ended the run"):
        FlowerTransport(link, str).collect({"ticket": 1})


@pytest.mark.parametrize(
    ("error", "doubtful"), [(httpx.ReadError("cut"), True), (httpx.ReadTimeout("slow"), True),
                            (status(503), True), (status(500), True), (httpx.ConnectError("not there"), False)],
)  # fmt: skip
def test_what_was_asked_when_the_superlink_was_cut_off_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, error: Exception, doubtful: bool
) -> None:
    """It announces every reply once: one that it announced when it was cut off would never come again."""
    link = Superlink(("first", *pushed(b"one")), ("second", *pushed(b"two")))
    pull = link.PullMessages
    errors = [error]

    def cut_once(asked: Any) -> Any:
        if errors:
            link.replies = [each for each in link.replies if each[0] != "first"] if doubtful else link.replies
            raise errors.pop()
        return pull(asked)

    monkeypatch.setattr(link, "PullMessages", cut_once)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    found = FlowerTransport(link, str).collect({"first": 1 << 20, "second": 1 << 20})
    expected = Delivery("first", doubtful=True) if doubtful else Delivery("first", b"one")
    assert sorted(found, key=lambda each: each.ticket) == [expected, Delivery("second", b"two")]


def test_a_piece_that_is_never_sent_is_one_nodes_problem() -> None:
    root, pieces = pushed(b"answer")
    del pieces[root]
    assert "never sent" in collected(root, pieces).problem
