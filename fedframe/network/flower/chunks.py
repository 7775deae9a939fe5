"""A reply as the SuperLink holds it: pulled piece by piece, and checked before it is put together.

Flower would pull, confirm and unpack all replies in one call, and wait two hours for a piece that is never sent. So a
member's piece of junk would end everybody's run, an array that names one piece a thousand times would fill the memory,
and the sender itself would say which request it answers. Here pieces and bytes are counted as they arrive, a reply of
which pieces are missing is left for the next poll, and what cannot be read is one node's problem.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from flwr.app import Array, Message
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedframe.errors import DataError

FRAME = ("Message", "RecordDict", "ArrayRecord", "Array")  # what stands around a payload's pieces, one of each
CHUNK = "ArrayChunk"
FRAME_BYTES = 1 << 16  # of the frame and of all heads
STALLED = 180.0  # seconds without a new piece after which no more is expected: its sender was killed, say
MIN_CHUNK_BYTES = 1 << 18  # pieces are larger (`environment.PIECE_BYTES`); this limits how many a reply has


@dataclass
class IncomingReply:
    """A reply whose pieces arrive one by one; its payload may have `max_bytes`."""

    root: str
    max_bytes: int
    missing: deque[str]  # in the order in which a SuperNode sends them: the frame comes last
    pieces: dict[str, bytes] = field(default_factory=dict)
    progressed_at: float = field(default_factory=time.monotonic)  # when the last piece came

    @classmethod
    def from_tree(cls, tree: ObjectTree, max_bytes: int) -> IncomingReply:
        """A reply whose pieces the SuperLink has listed."""
        max_pieces = len(FRAME) + 1 + max_bytes // MIN_CHUNK_BYTES
        names = [each.object_id for each in islice(iterate_object_tree(tree), max_pieces + 1)]
        if len(names) > max_pieces:
            raise DataError(f"It comes in more than {max_pieces} pieces.")
        return cls(tree.object_id, max_bytes, deque(dict.fromkeys(names)))

    def pull_missing(self, pull: Callable[[str], PullObjectResponse]) -> bool:
        """Pull what is missing; returns whether the reply is complete now."""
        while self.missing:
            found = pull(self.missing[0])
            if not found.object_found:
                raise DataError("A piece of it was never sent.")
            if not found.object_available:
                if time.monotonic() - self.progressed_at > STALLED:
                    raise DataError(f"Its pieces stopped coming {STALLED:g} seconds ago.")
                return False
            self.pieces[self.missing.popleft()] = found.object_content
            self.progressed_at = time.monotonic()
            self.check_size(sum(map(len, self.pieces.values())))
        return True

    def check_size(self, size: int) -> None:
        """Refuse a reply above its limit."""
        if size > self.max_bytes + FRAME_BYTES:
            raise DataError(f"It is larger than the {self.max_bytes:,} bytes that are allowed.")

    def to_message(self) -> Message:
        """The complete reply as Flower's message, checked first."""
        heads = {name: get_object_head_values_from_object_content(piece) for name, piece in self.pieces.items()}
        kinds = [kind for kind, _, _ in heads.values() if kind != CHUNK]
        if len(set(kinds)) < len(kinds) or not set(kinds) <= set(FRAME):
            raise DataError("It holds something else than a message.")
        for name, (kind, parts, _) in heads.items():
            if kind == "Array":  # a piece of zeros may stand in it many times, and then counts as often
                chunks = json.loads(get_object_body(self.pieces[name], Array))["arraychunk_ids"]
                self.check_size(sum(len(self.pieces[parts[number]]) for number in chunks))
        message = inflate_object_from_contents(self.root, self.pieces)
        if not isinstance(message, Message):
            raise DataError("It holds something else than a message.")
        return message
