"""Masks that cancel: what a client sends is noise to anyone who reads it, yet all of it together adds up to the sum.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, in the form for active
adversaries. With x_k what client k would send, as whole numbers modulo 2^64,
    y_k = x_k + B_k + sum_{j > k} S_kj - sum_{j < k} S_kj
where B_k is a keystream that only k can make, and S_kj one that k and j can make and nobody else. With y_k go shares of
the seeds of B_k and of every S_kj, one for each other client and encrypted for it (`shamir.py`). Once the server knows
whose y_k have arrived, every one of these clients signs that list, and one list only. Who then holds the signatures of
enough clients under the list that it has signed itself reveals the seeds of B_k for those on the list, and of S_kd for
those who are not, and the shares that it holds of the others' (`masker.py`): never both of one client.

Differs from the paper in: keys are agreed once, not in every round, and bound to the request by `context`; seeds of
single keystreams are shared and not keys, so that no round of keys goes before the masked vectors, at the price of as
many shares as clients squared. The page docs/secure-aggregation.md has it step by step.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from fedframe.core.message import Message
from fedframe.errors import ProtocolError
from fedframe.network.admission import digest_tensors

RingVector = npt.NDArray[np.uint64]  # integers modulo 2^64
SEED_BYTES = 32
HEX = re.compile("[0-9a-f]{64}")  # a context
KEY = re.compile("[0-9a-f]{128}")  # a member's two public keys: for masks, and for signatures
SIGNATURE = re.compile("[0-9a-f]{128}")
# Bits behind the point, constants of the protocol: a scale that came with a request would tell who overflows it.
# Values that are weighted by samples may be a billion times as large, and their sum is divided by all samples.
FRACTION_BITS = {"samples": 24, "uniform": 40, "plain": 32}


# -- fixed-point numbers -----------------------------------------------------------------------------------------------
def to_fixed_point(value: Tensor, factor: float, bits: int, clients: int) -> RingVector | None:
    """factor * value in fixed point modulo 2^64; None for NaN, or what could overflow the sum of all clients."""
    scaled = value.detach().double().flatten() * (factor * 2.0**bits)
    if not bool((scaled.abs() < 2.0**62 / clients).all()):  # NaN is not below anything either
        return None
    vector: RingVector = scaled.round().long().numpy().view(np.uint64)
    return vector


def from_fixed_point(vector: RingVector, bits: int) -> Tensor:
    """What the fixed-point numbers stand for, in float64."""
    return torch.from_numpy(vector.view(np.int64).astype(np.float64)) / 2.0**bits


def keystream(seed: bytes, count: int) -> RingVector:
    """So many random numbers from a seed (ChaCha20)."""
    cipher = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    vector: RingVector = np.frombuffer(cipher.update(bytes(8 * count)), dtype=np.uint64)
    return vector


def signed_keystream(seed: bytes, count: int, client: int, other: int) -> RingVector:
    """S_kj as it enters y_k: the two of a pair add it with opposite signs."""
    vector = keystream(seed, count)
    return vector if other > client else (np.uint64(0) - vector)


# -- who is summed together --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MaskingGroup:
    """The clients whose replies to one request are summed: their public keys, and what their masks are bound to."""

    keys: Mapping[int, str]  # by client number
    context: str  # identifies the request: another model, round or group has other keystreams
    alive: tuple[int, ...] = ()  # whose y_k have arrived: once signatures and seeds are asked for
    signatures: Mapping[int, str] = field(default_factory=dict)  # under that list: once seeds are asked for

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for a request."""
        keys, signatures = ({str(client): text for client, text in of.items()} for of in (self.keys, self.signatures))
        return {"keys": keys, "context": self.context, "alive": list(self.alive), "signatures": signatures}

    @classmethod
    def from_json(cls, values: Any) -> MaskingGroup:
        """Read it from JSON values; anything else is refused."""
        unreadable = ProtocolError("Whose updates are to be added up securely cannot be read.")
        try:
            keys = {int(client): str(key) for client, key in values["keys"].items() if KEY.fullmatch(key)}
            given = values["signatures"].items()
            signatures = {int(client): str(text) for client, text in given if SIGNATURE.fullmatch(text)}
            context, alive = str(values["context"]), tuple(map(int, values["alive"]))
            fine = len(keys) == len(values["keys"]) and min(keys) >= 0 and set(signatures) <= set(keys)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise unreadable from error
        # A client that is named twice would count twice among those who are left.
        if not fine or not HEX.fullmatch(context) or not set(alive) <= set(keys) or len(set(alive)) != len(alive):
            raise unreadable
        return cls(keys, context, tuple(sorted(alive)), signatures)

    @property
    def gone(self) -> list[int]:
        """The clients whose y_k have not arrived."""
        return [client for client in sorted(self.keys) if client not in self.alive]


def mask_context(run: str, request: Message, keys: Mapping[int, str], kinds: Collection[str]) -> str:
    """What masks are bound to: the run, the request with all its numbers and tensors, the work, and the group."""
    digest = hashlib.blake2b(digest_size=SEED_BYTES)
    numbers = sorted(request.numbers.items())
    digest.update(json.dumps([run, request.kind, request.round, numbers, sorted(kinds), sorted(keys.items())]).encode())
    digest_tensors(digest, request.tensors)
    return digest.hexdigest()


def group_digest(keys: Mapping[int, str]) -> str:
    """A short text that identifies a group."""
    return hashlib.blake2b(json.dumps(sorted(keys.items())).encode(), digest_size=16).hexdigest()


def survivors_text(group: MaskingGroup, client: int) -> bytes:
    """What a client signs: that it received this list for this request."""
    return json.dumps(["fedframe survivors 2", group.context, list(group.alive), client]).encode()


def signature_holds(group: MaskingGroup, client: int, signature: str) -> bool:
    """Whether a client has signed the group's list of survivors."""
    if client not in group.keys or not SIGNATURE.fullmatch(signature):
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(group.keys[client][64:]))
        key.verify(bytes.fromhex(signature), survivors_text(group, client))
    except (InvalidSignature, ValueError):
        return False
    return True


def usable_key(text: str) -> bool:
    """Whether these are a member's public keys, and secrets can be made with them."""
    if not KEY.fullmatch(text):
        return False
    try:  # a point of small order gives a secret that everybody knows, and is refused
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(text[:64])))
    except ValueError:
        return False
    return True


def fingerprint(key: str) -> str:
    """A member's public keys as people compare them: 96 bits that they can read out."""
    text = hashlib.blake2b(bytes.fromhex(key), digest_size=12).hexdigest().upper()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


# -- the server's side -------------------------------------------------------------------------------------------------
def unmask(masked: Mapping[int, RingVector], seeds: Mapping[int, Mapping[str, bytes]]) -> RingVector:
    """The sum of x_k, from all y_k and the seeds of their masks that do not cancel."""
    count = len(next(iter(masked.values())))
    total = np.zeros(count, dtype=np.uint64)
    for client, vector in masked.items():
        total = total + vector
        for name, seed in seeds[client].items():
            other = name.partition("pair/")[2]
            total = total - (signed_keystream(seed, count, client, int(other)) if other else keystream(seed, count))
    return total
