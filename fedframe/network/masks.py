"""Masks that cancel: what a client sends is noise to anyone who reads it, yet all of it together adds up to the sum.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017. With x_k what client k
would send, as whole numbers modulo 2^64,
    y_k = x_k + B_k + sum_{j > k} S_kj - sum_{j < k} S_kj
where B_k is a keystream that only k can make, and S_kj one that k and j can make and nobody else. Once the server has
the y_k of those who are still there, each of them reveals the seed of its B_k, and of its S_kd of those who are gone,
never both of one client: so a reply that comes late stays noise.

Differs from the paper in: keys are agreed once, not in every round, and what a client would have shared as secrets
among the others it reveals itself. A client that has sent its y_k must therefore come back to reveal its B_k; else the
round is given up. Keystreams are bound to the request that they answer (`context`). A node records what it has sent and
revealed: it uses keystreams for one x_k only, and of a round it reveals those of one request, for one set of clients.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from torch import Tensor

from fedframe.core.message import Message
from fedframe.errors import ProtocolError
from fedframe.network.certificates import write_secret
from fedframe.util.files import read_json, write_json

RingVector = npt.NDArray[np.uint64]  # integers modulo 2^64
SEED_BYTES = 32
HEX = re.compile("[0-9a-f]{64}")  # a key or a context
# Bits behind the point: weighted values are shares of a mean, plain ones may be large.
FRACTION_BITS = {"weighted": 40, "plain": 32}


# -- fixed-point numbers -----------------------------------------------------------------------------------------------
def to_fixed_point(value: Tensor, factor: float, bits: int, clients: int) -> RingVector:
    """factor * value in fixed point modulo 2^64; a value that could overflow the sum of all clients is refused."""
    scaled = value.detach().double().flatten() * (factor * 2.0**bits)
    limit = 2.0**62 / clients
    if not bool((scaled.abs() < limit).all()):  # NaN is not below anything either
        raise ProtocolError("An update has NaN or values too large to be added up securely; it is not sent.")
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
    scale: float  # weights are divided by it, so that weighted values are shares of a mean
    context: str  # identifies the request: another model, round or group has other keystreams
    alive: tuple[int, ...] = ()  # whose y_k have arrived: only when seeds are asked for

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for a request."""
        keys = {str(client): key for client, key in self.keys.items()}
        return {"keys": keys, "scale": self.scale, "context": self.context, "alive": list(self.alive)}

    @classmethod
    def from_json(cls, values: Any) -> MaskingGroup:
        """Read it from JSON values; anything else is refused."""
        unreadable = ProtocolError("Whose updates are to be added up securely cannot be read.")
        try:
            keys = {int(client): str(key) for client, key in values["keys"].items() if HEX.fullmatch(key)}
            scale, context, alive = float(values["scale"]), str(values["context"]), tuple(map(int, values["alive"]))
            fine = len(keys) == len(values["keys"]) and min(keys) >= 0 and 0 < scale < math.inf
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise unreadable from error
        # A client that is named twice would count twice among those who are left.
        if not fine or not HEX.fullmatch(context) or not set(alive) <= set(keys) or len(set(alive)) != len(alive):
            raise unreadable
        return cls(keys, scale, context, alive)


def mask_context(run: str, request: Message, keys: Mapping[int, str], scale: float) -> str:
    """What masks are bound to: the run, the request with all its numbers and tensors, the group and its scale."""
    digest = hashlib.blake2b(digest_size=SEED_BYTES)
    numbers = sorted(request.numbers.items())
    digest.update(json.dumps([run, request.kind, request.round, numbers, scale, sorted(keys.items())]).encode())
    for name, tensor in sorted(request.tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# -- the node's side ---------------------------------------------------------------------------------------------------
class Masker:
    """A node's key, the keys of others as it first saw them, and what it has sent and revealed."""

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self.folder, self.notify = folder, notify
        path = folder / "masks.key"
        if not path.exists():
            made = X25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
            write_secret(path, made)
        self.secret = path.read_bytes()
        self.key = X25519PrivateKey.from_private_bytes(self.secret)
        self.public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def mask(self, vector: RingVector, client: int, group: MaskingGroup, round: str) -> RingVector:
        """y_k; `round` names the run, the kind of work and the round, of which seeds are revealed once."""
        self.record_sent(vector, client, group, round)
        masked = vector + keystream(self.own_seed(client, group), len(vector))
        for other in group.keys:
            if other != client:
                masked = masked + signed_keystream(self.pair_seed(client, other, group), len(vector), client, other)
        return masked

    def record_sent(self, vector: RingVector, client: int, group: MaskingGroup, round: str) -> None:
        """Record what is sent under these masks; the difference of two vectors would be without a mask."""
        path, name = self.folder / "sent" / f"{group.context}.json", str(client)
        fresh: dict[str, Any] = {"round": round, "circle": group_digest(group.keys), "words": {}}
        sent: dict[str, Any] = read_json(path) if path.exists() else fresh
        digest = hashlib.blake2b(vector.tobytes(), key=self.secret, digest_size=16).hexdigest()
        if sent["words"].get(name, digest) != digest:
            raise ProtocolError(
                "This request was answered before with other numbers, and the difference of both could be read; are "
                "the data the same as then? The next round is answered again."
            )
        if name not in sent["words"]:
            write_json(path, {**sent, "words": {**sent["words"], name: digest}})

    def reveal_seeds(self, client: int, group: MaskingGroup, min_clients: int) -> dict[str, bytes]:
        """The seeds of B_k and of S_kd for those who are gone; once per round, for one request and set of clients."""
        alive = sorted(set(group.alive))
        if client not in alive or len(alive) < max(2, min_clients):
            raise ProtocolError(f"Masks are revealed for at least {max(2, min_clients)} clients, this one among them.")
        path = self.folder / "sent" / f"{group.context}.json"
        sent = read_json(path) if path.exists() else {"words": {}}
        if str(client) not in sent["words"] or sent["circle"] != group_digest(group.keys):
            raise ProtocolError("Masks are revealed of a request that was answered, and for its own clients.")
        revealed, now = self.folder / "told" / f"{sent['round']}.json", {"context": group.context, "alive": alive}
        if not revealed.exists():
            write_json(revealed, now)
        elif read_json(revealed) != now:
            raise ProtocolError(
                "Masks of this round were revealed for other clients already; with both a reply could be read."
            )
        gone = [other for other in group.keys if other not in alive]
        return {"own": self.own_seed(client, group)} | {
            f"pair/{other}": self.pair_seed(client, other, group) for other in gone
        }

    def check_keys(self, group: MaskingGroup, own: Collection[int], names: Callable[[int], str]) -> None:
        """Refuse a group in which this node's key, or another that it has seen before, is another one."""
        path = self.folder / "peers.json"
        known: dict[str, str] = read_json(path) if path.exists() else {}
        fresh = {}
        for client, key in group.keys.items():
            if client in own and key != self.public:
                raise ProtocolError("The organiser has another key of this node than it has; was its folder deleted?")
            if known.get(names(client), key) != key:
                raise ProtocolError(
                    f"The key of {names(client)} has changed; ask there, then delete it from peers.json."
                )
            if client not in own and names(client) not in known:
                fresh[names(client)] = key
                self.notify(
                    f"Key of {names(client)}: {fingerprint(key)} (it must be what {names(client)} has printed)."
                )
        if fresh:
            write_json(path, known | fresh)

    def own_seed(self, client: int, group: MaskingGroup) -> bytes:
        """The seed of B_k."""
        return derive_seed(self.secret, f"own {group.context} {client}")

    def pair_seed(self, client: int, other: int, group: MaskingGroup) -> bytes:
        """The seed of S_kj, which both clients derive alike."""
        shared = self.key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(group.keys[other])))
        return derive_seed(shared, f"pair {group.context} {min(client, other)} {max(client, other)}")


def group_digest(keys: Mapping[int, str]) -> str:
    """A short text that identifies a group."""
    return hashlib.blake2b(json.dumps(sorted(keys.items())).encode(), digest_size=16).hexdigest()


def derive_seed(secret: bytes, purpose: str) -> bytes:
    """A seed for one purpose."""
    return HKDF(hashes.SHA256(), SEED_BYTES, None, f"fedframe {purpose}".encode()).derive(secret)


def fingerprint(key: str) -> str:
    """A key as people compare it."""
    text = hashlib.blake2b(bytes.fromhex(key), digest_size=8).hexdigest().upper()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


# -- the server's side -------------------------------------------------------------------------------------------------
def unmask(masked: Mapping[int, RingVector], seeds: Mapping[int, Mapping[str, bytes]]) -> RingVector:
    """The sum of x_k, from all y_k and the seeds that their clients have revealed."""
    count = len(next(iter(masked.values())))
    total = np.zeros(count, dtype=np.uint64)
    for client, vector in masked.items():
        total = total + vector
        for name, seed in seeds[client].items():
            other = name.partition("pair/")[2]
            total = total - (signed_keystream(seed, count, client, int(other)) if other else keystream(seed, count))
    return total
