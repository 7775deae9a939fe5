"""Masks that cancel: what a client sends is noise to whoever reads it, and yet all of it together adds up to the sum.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017. With x_k what client k
would send, as whole numbers modulo 2^64,
    y_k = x_k + B_k + sum_{j > k} S_kj - sum_{j < k} S_kj
where B_k is a stream of random numbers that only k can make, and S_kj one that k and j can make and nobody else. Once
the server has the y_k of those who are still there, each of them tells its B_k, and its S_kd of those who are gone,
never both of one client: so a reply that comes late stays noise.

Differs from the paper in: keys are agreed once, not in every round, and what a client would have shared as secrets
among the others it tells itself. Who has sent its y_k must therefore come back to tell its B_k; else the round is
given up. Streams are bound to the order that they answer (`context`). A node writes down what it has sent and told: it
uses streams for one x_k only, and of a round it tells those of one order, for one set of clients.
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

RingVector = npt.NDArray[np.uint64]
SEED = 32  # bytes
HEX = re.compile("[0-9a-f]{64}")  # a key or a context
BITS = {"weighted": 40, "plain": 32}  # behind the point: weighted values are shares of a mean, plain ones may be large


# -- numbers as words of a ring ----------------------------------------------------------------------------------------
def to_words(value: Tensor, factor: float, bits: int, clients: int) -> RingVector:
    """factor * value in fixed point modulo 2^64; a value that could overflow the sum of all clients is refused."""
    scaled = value.detach().double().flatten() * (factor * 2.0**bits)
    most = 2.0**62 / clients
    if not bool((scaled.abs() < most).all()):  # NaN is not below anything either
        raise ProtocolError("An update has NaN or values too large to be added up securely; it is not sent.")
    words: RingVector = scaled.round().long().numpy().view(np.uint64)
    return words


def from_words(words: RingVector, bits: int) -> Tensor:
    """What the words stand for, in float64."""
    return torch.from_numpy(words.view(np.int64).astype(np.float64)) / 2.0**bits


def stream(seed: bytes, count: int) -> RingVector:
    """So many random words from a seed (ChaCha20)."""
    cipher = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    words: RingVector = np.frombuffer(cipher.update(bytes(8 * count)), dtype=np.uint64)
    return words


def signed(seed: bytes, count: int, mine: int, other: int) -> RingVector:
    """S_kj as it enters y_k: the two of a pair add it with opposite signs."""
    words = stream(seed, count)
    return words if other > mine else (np.uint64(0) - words)


# -- who adds up together ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MaskingGroup:
    """The clients whose replies to one order are added up: their public keys, and what their streams are bound to."""

    keys: Mapping[int, str]  # by client number
    scale: float  # weights are divided by it, so that weighted values are shares of a mean
    context: str  # names the order: another model, round or circle has other streams
    alive: tuple[int, ...] = ()  # whose y_k have arrived: only when streams are asked for

    def notes(self) -> dict[str, Any]:
        """As notes of a letter."""
        keys = {str(client): key for client, key in self.keys.items()}
        return {"keys": keys, "scale": self.scale, "context": self.context, "alive": list(self.alive)}

    @classmethod
    def from_notes(cls, notes: Any) -> MaskingGroup:
        """Read it; what is none is refused."""
        unreadable = ProtocolError("Whose updates are to be added up securely cannot be read.")
        try:
            keys = {int(client): str(key) for client, key in notes["keys"].items() if HEX.fullmatch(key)}
            scale, context, alive = float(notes["scale"]), str(notes["context"]), tuple(map(int, notes["alive"]))
            fine = len(keys) == len(notes["keys"]) and min(keys) >= 0 and 0 < scale < math.inf
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise unreadable from error
        # A client that is named twice would count twice among those who are left.
        if not fine or not HEX.fullmatch(context) or not set(alive) <= set(keys) or len(set(alive)) != len(alive):
            raise unreadable
        return cls(keys, scale, context, alive)


def context_of(run: str, request: Message, keys: Mapping[int, str], scale: float) -> str:
    """What streams are bound to: the run, the order with all its numbers and tensors, the circle and its scale."""
    digest = hashlib.blake2b(digest_size=SEED)
    numbers = sorted(request.numbers.items())
    digest.update(json.dumps([run, request.kind, request.round, numbers, scale, sorted(keys.items())]).encode())
    for name, tensor in sorted(request.tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# -- the node's side ---------------------------------------------------------------------------------------------------
class Masker:
    """A node's key, the keys of others as it first saw them, and what it has sent and told."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self.folder, self.note = folder, note
        path = folder / "masks.key"
        if not path.exists():
            made = X25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
            write_secret(path, made)
        self.secret = path.read_bytes()
        self.key = X25519PrivateKey.from_private_bytes(self.secret)
        self.public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def mask(self, words: RingVector, client: int, circle: MaskingGroup, round: str) -> RingVector:
        """y_k; `round` names the run, the kind of work and the round, of which streams are told once."""
        self.note_sent(words, client, circle, round)
        masked = words + stream(self.own_seed(client, circle), len(words))
        for other in circle.keys:
            if other != client:
                masked = masked + signed(self.pair_seed(client, other, circle), len(words), client, other)
        return masked

    def note_sent(self, words: RingVector, client: int, circle: MaskingGroup, round: str) -> None:
        """Write down what is sent under these streams; the difference of two things would be without a mask."""
        path, who = self.folder / "sent" / f"{circle.context}.json", str(client)
        fresh: dict[str, Any] = {"round": round, "circle": self.digest(circle.keys), "words": {}}
        sent: dict[str, Any] = read_json(path) if path.exists() else fresh
        digest = hashlib.blake2b(words.tobytes(), key=self.secret, digest_size=16).hexdigest()
        if sent["words"].get(who, digest) != digest:
            raise ProtocolError(
                "This order was answered before with other numbers, and the difference of both could be read; are the "
                "data the same as then? The next round is answered again."
            )
        if who not in sent["words"]:
            write_json(path, {**sent, "words": {**sent["words"], who: digest}})

    def reveal(self, client: int, circle: MaskingGroup, fewest: int) -> dict[str, bytes]:
        """The seeds of B_k and of S_kd for those who are gone; in a round only for one order and one set of clients."""
        alive = sorted(set(circle.alive))
        if client not in alive or len(alive) < max(2, fewest):
            raise ProtocolError(f"Streams are told for at least {max(2, fewest)} clients, this one among them.")
        path = self.folder / "sent" / f"{circle.context}.json"
        sent = read_json(path) if path.exists() else {"words": {}}
        if str(client) not in sent["words"] or sent["circle"] != self.digest(circle.keys):
            raise ProtocolError("Streams are told of an order that was answered, and for its own clients.")
        told, telling = self.folder / "told" / f"{sent['round']}.json", {"context": circle.context, "alive": alive}
        if not told.exists():
            write_json(told, telling)
        elif read_json(told) != telling:
            raise ProtocolError(
                "Streams of this round were told for other clients already; with both a reply could be read."
            )
        gone = [other for other in circle.keys if other not in alive]
        return {"own": self.own_seed(client, circle)} | {
            f"pair/{other}": self.pair_seed(client, other, circle) for other in gone
        }

    def digest(self, keys: Mapping[int, str]) -> str:
        """A short text for a circle."""
        return hashlib.blake2b(json.dumps(sorted(keys.items())).encode(), digest_size=16).hexdigest()

    def check(self, circle: MaskingGroup, mine: Collection[int], names: Callable[[int], str]) -> None:
        """Refuse a circle in which this node's key, or another that it has seen before, is another one."""
        path = self.folder / "peers.json"
        known: dict[str, str] = read_json(path) if path.exists() else {}
        fresh = {}
        for client, key in circle.keys.items():
            if client in mine and key != self.public:
                raise ProtocolError("The organiser has another key of this node than it has; was its folder deleted?")
            if known.get(names(client), key) != key:
                raise ProtocolError(
                    f"The key of {names(client)} has changed; ask there, then delete it from peers.json."
                )
            if client not in mine and names(client) not in known:
                fresh[names(client)] = key
                self.note(f"Key of {names(client)}: {fingerprint(key)} (it must be what {names(client)} has printed).")
        if fresh:
            write_json(path, known | fresh)

    def own_seed(self, client: int, circle: MaskingGroup) -> bytes:
        """Of B_k."""
        return derive(self.secret, f"own {circle.context} {client}")

    def pair_seed(self, client: int, other: int, circle: MaskingGroup) -> bytes:
        """Of S_kj: the same at both."""
        shared = self.key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(circle.keys[other])))
        return derive(shared, f"pair {circle.context} {min(client, other)} {max(client, other)}")


def derive(secret: bytes, purpose: str) -> bytes:
    """A seed for one purpose."""
    return HKDF(hashes.SHA256(), SEED, None, f"fedframe {purpose}".encode()).derive(secret)


def fingerprint(key: str) -> str:
    """A key as people compare it."""
    text = hashlib.blake2b(bytes.fromhex(key), digest_size=8).hexdigest().upper()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


# -- the server's side -------------------------------------------------------------------------------------------------
def unmask(masked: Mapping[int, RingVector], told: Mapping[int, Mapping[str, bytes]]) -> RingVector:
    """The sum of x_k, from all y_k and what their clients have told."""
    count = len(next(iter(masked.values())))
    total = np.zeros(count, dtype=np.uint64)
    for client, words in masked.items():
        total = total + words
        for name, seed in told[client].items():
            other = name.partition("pair/")[2]
            total = total - (signed(seed, count, client, int(other)) if other else stream(seed, count))
    return total
