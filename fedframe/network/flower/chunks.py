"""A reply as the SuperLink holds it: pulled piece by piece, and looked at before it is put together.

Flower would pull, confirm and unpack all replies in one call, and wait two hours for a piece that is never sent. So a
member's piece of junk would end everybody's run, an array that names one piece a thousand times would fill the memory,
and the sender itself would say which letter it answers. Here pieces and bytes are counted as they come, a
reply of which pieces are missing is left for the next look, and what cannot be read is one node's problem.
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

FRAME = ("Message", "RecordDict", "ArrayRecord", "Array")  # what stands around a letter's pieces, one of each
PIECE = "ArrayChunk"
SLACK = 1 << 16  # bytes of the frame and of all heads
STALLED = 180.0  # seconds without a new piece after which no more is expected: its sender was killed, say
SMALL = 1 << 20  # bytes: Flower's pieces are five times as large, so a letter has at most so many


@dataclass
class Arriving:
    """A reply whose pieces come in; `most` is how many bytes its letter may have."""

    root: str
    most: int
    missing: deque[str]  # in the order in which a SuperNode sends them: the frame comes last
    pieces: dict[str, bytes] = field(default_factory=dict)
    grew: float = field(default_factory=time.monotonic)  # when the last piece came

    @classmethod
    def announced(cls, tree: ObjectTree, most: int) -> Arriving:
        """A reply of which the SuperLink has told the pieces."""
        count = len(FRAME) + 1 + most // SMALL
        names = [each.object_id for each in islice(iterate_object_tree(tree), count + 1)]
        if len(names) > count:
            raise DataError(f"It comes in more than {count} pieces.")
        return cls(tree.object_id, most, deque(dict.fromkeys(names)))

    def whole(self, pull: Callable[[str], PullObjectResponse]) -> bool:
        """Pull what is missing; whether all is here now."""
        while self.missing:
            found = pull(self.missing[0])
            if not found.object_found:
                raise DataError("A piece of it was never sent.")
            if not found.object_available:
                if time.monotonic() - self.grew > STALLED:
                    raise DataError(f"Its pieces stopped coming {STALLED:g} seconds ago.")
                return False
            self.pieces[self.missing.popleft()] = found.object_content
            self.grew = time.monotonic()
            if sum(map(len, self.pieces.values())) > self.most + SLACK:
                raise DataError(f"It is larger than the {self.most:,} bytes that are allowed.")
        return True

    def opened(self) -> Message:
        """The reply as Flower's message; looked at first."""
        heads = {name: get_object_head_values_from_object_content(piece) for name, piece in self.pieces.items()}
        kinds = [kind for kind, _, _ in heads.values() if kind != PIECE]
        if len(set(kinds)) < len(kinds) or not set(kinds) <= set(FRAME):
            raise DataError("It holds something else than a letter.")
        for name, (kind, parts, _) in heads.items():
            if kind == "Array":  # a piece of zeros may stand in it many times, and then counts as often
                request = json.loads(get_object_body(self.pieces[name], Array))["arraychunk_ids"]
                if sum(len(self.pieces[parts[number]]) for number in request) > self.most + SLACK:
                    raise DataError(f"It is larger than the {self.most:,} bytes that are allowed.")
        message = inflate_object_from_contents(self.root, self.pieces)
        if not isinstance(message, Message):
            raise DataError("It holds something else than a letter.")
        return message
