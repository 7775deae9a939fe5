"""Messages of a survey: one envelope each way, whose notes say which survey and stage it is; no model travels.

Sums are masked (`network/masks.py`): a member adds keystreams that it shares with each other member and that cancel
in the sum. Nobody may be missing from a survey, so that nothing else has to be revealed, and no mask of a member ever
is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedframe.core.message import Message
from fedframe.errors import DataError, ProtocolError
from fedframe.federation.audit import canonical, digest_of
from fedframe.network.envelope import decode_envelope, encode_envelope, invalid_envelope, read_head
from fedframe.network.masker import Masker
from fedframe.network.masks import KEY, MaskingGroup, RingVector, from_fixed_point, signed_keystream, to_fixed_point

SURVEY = "survey"  # the kind of message, and what marks its envelope
FORM, AGREEMENT = "form", "agreement"  # stages beside the two sums
MASKED = "masked"
BITS = 36  # behind the point: sums stay below 2^26 over the number of members, and are exact to 2^-36 per member
MAX_BYTES = 64 << 20
VERSION = 1


@dataclass(frozen=True)
class SurveyRequest:
    """What a member is asked."""

    survey: str
    stage: str
    body: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Encode it as an envelope."""
        return encode_envelope([], {SURVEY: self.survey, "stage": self.stage, "body": dict(self.body), "v": VERSION})

    @classmethod
    def from_bytes(cls, content: bytes) -> SurveyRequest:
        """Decode a request, or refuse anything else."""
        messages, notes = decode_envelope(content, MAX_BYTES)
        survey, stage, body = (notes.get(name) for name in (SURVEY, "stage", "body"))
        fine = isinstance(survey, str) and survey.isalnum() and len(survey) <= 64 and isinstance(stage, str)
        if messages or not fine or not isinstance(body, dict):
            raise invalid_envelope("it is no question of a survey")
        if notes.get("v") != VERSION:
            raise ProtocolError("The survey is of another version of Fedframe; install the same one everywhere.")
        assert isinstance(survey, str)
        assert isinstance(stage, str)
        return cls(survey, stage, body)

    @property
    def digest(self) -> str:
        """Identifies the question, with all that it brings."""
        return digest_of(canonical({SURVEY: self.survey, "stage": self.stage, "body": dict(self.body)}))


def is_survey(content: bytes) -> bool:
    """Whether an envelope is of a survey, by its head alone."""
    return SURVEY in read_head(content)["notes"]


def encode_answer(
    request: SurveyRequest, body: Mapping[str, Any], client: int = 0, vector: RingVector | None = None
) -> bytes:
    """A member's answer: plain values, and a masked vector if sums are taken."""
    notes = {SURVEY: request.survey, "stage": request.stage, "body": dict(body), "answers": request.digest}
    messages = []
    if vector is not None:
        messages = [Message(SURVEY, 0, client, {MASKED: torch.from_numpy(vector.view(np.int64))})]
    return encode_envelope(messages, notes)


def decode_answer(content: bytes, request: SurveyRequest, size: int | None) -> tuple[dict[str, Any], RingVector | None]:
    """The plain values of an answer and, if so many numbers are summed, its masked vector."""
    messages, notes = decode_envelope(content, MAX_BYTES)
    body = notes.get("body")
    if notes.get("answers") != request.digest or not isinstance(body, dict):
        raise ProtocolError("it answers another question")
    if "refused" in body or size is None:
        return body, None
    tensor = messages[0].tensors.get(MASKED) if len(messages) == 1 else None
    if tensor is None or tensor.dtype != torch.int64 or tensor.shape != (size,):
        raise ProtocolError(f"it does not hold the {size} numbers that are added up")
    return body, tensor.numpy().view(np.uint64)


# -- masks -------------------------------------------------------------------------------------------------------------
def read_group(request: SurveyRequest, members: int) -> MaskingGroup:
    """With whom a sum is taken: all members, each with its key."""
    keys = request.body.get("keys")
    fine = isinstance(keys, list) and len(keys) == members and members >= 2
    if not fine or not all(isinstance(key, str) and KEY.fullmatch(key) for key in keys or ()):
        raise ProtocolError("A sum of a survey is over all members, with a key of each.")
    assert isinstance(keys, list)
    return MaskingGroup(dict(enumerate(keys)), request.digest)


def mask(values: Sequence[float], client: int, group: MaskingGroup, masker: Masker) -> RingVector:
    """What a member sends: its numbers in fixed point, and keystreams that cancel in the sum over all members."""
    vector = to_fixed_point(torch.tensor(values, dtype=torch.float64), 1.0, BITS, len(group.keys))
    if vector is None:
        raise DataError("A sum of the survey is too large to be sent, or no number; divide the columns' values first.")
    for other in group.keys:
        if other != client:
            seed = masker.pair_seed(client, other, group)
            vector = vector + signed_keystream(seed, len(vector), client, other)
    return vector


def add_up(vectors: Sequence[RingVector]) -> list[float]:
    """The sum of what all members have sent, in which the masks are gone."""
    total = np.zeros(len(vectors[0]), dtype=np.uint64)
    for vector in vectors:
        total = total + vector
    found: list[float] = from_fixed_point(total, BITS).tolist()
    return found
