"""A payload as the content of a Flower message: one array of bytes, whatever is in it.

Flower moves it as it is (one object, not one per tensor, which is what makes its rounds slow) and never unpacks it.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from fedframe.errors import ProtocolError
from fedframe.network.envelope import MAX_BYTES

NAME = "letter"
KIND = "fedframe.letter"  # no serialisation that Flower knows, so that nothing of it ever tries to read the bytes


def to_record(payload: bytes) -> RecordDict:
    """Wrap bytes in a record."""
    return RecordDict({NAME: ArrayRecord({NAME: Array("uint8", (len(payload),), KIND, payload)})})


def from_record(record: RecordDict) -> bytes:
    """The bytes of a record that holds a payload and nothing else."""
    arrays = record.array_records.get(NAME)
    if len(record) != 1 or arrays is None or list(arrays) != [NAME]:
        raise ProtocolError("It holds something else than a message.")
    array = arrays[NAME]
    if array.stype != KIND or array.shape != (len(array.data),) or len(array.data) > MAX_BYTES:
        raise ProtocolError("It holds a message of another kind or size.")
    return array.data
