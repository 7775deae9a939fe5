"""A member's side of secure aggregation: its keys, what it has sent and signed, and what it reveals.

All of it is on the disk before it leaves. Of a request a member masks one vector only; of a kind of work in a round it
signs one list of survivors, for ever; and it reveals seeds only under a list that it has signed itself and that enough
others have signed too (`masks.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedframe.errors import ProtocolError
from fedframe.network.certificates import write_secret
from fedframe.network.masks import (
    SEED_BYTES,
    MaskingGroup,
    RingVector,
    fingerprint,
    group_digest,
    keystream,
    signature_holds,
    signed_keystream,
    survivors_text,
)
from fedframe.network.shamir import SHARE_BYTES, split
from fedframe.util.durable import write_durably
from fedframe.util.files import read_json

TAG_BYTES = 16  # of an encrypted block, beyond what it holds


class Masker:
    """A node's keys, the keys of others as it first saw them, and what it has sent, signed and revealed."""

    def __init__(self, folder: Path, notify: Callable[[str], None], pins: Mapping[str, str] | None = None) -> None:
        self.folder, self.notify, self.pins = folder, notify, dict(pins or {})
        path = folder / "masks.key"
        if not path.exists():
            made = X25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
            write_secret(path, made)
        self.secret = path.read_bytes()
        self.key = X25519PrivateKey.from_private_bytes(self.secret)
        self.signing = Ed25519PrivateKey.from_private_bytes(derive_seed(self.secret, "signatures"))
        parts = (self.key.public_key(), self.signing.public_key())
        self.public = "".join(each.public_bytes(Encoding.Raw, PublicFormat.Raw).hex() for each in parts)

    # -- whom it masks with --------------------------------------------------------------------------------------------
    def check_keys(self, group: MaskingGroup, own: Collection[int], names: Callable[[int], str]) -> None:
        """Refuse a group in which this node's key, or another that it has seen before, is another one."""
        path = self.folder / "peers.json"
        known: dict[str, str] = read_json(path) if path.exists() else {}
        fresh = {}
        for client, key in sorted(group.keys.items()):
            name = names(client)
            if client in own:
                if key != self.public:
                    raise ProtocolError(
                        "The organiser has another key of this node than it has; was its folder deleted?"
                    )
                continue
            if name in self.pins and self.pins[name] != fingerprint(key):
                raise ProtocolError(f"The key of {name} is not the one that this node was told (join --peers).")
            if known.get(name, key) != key:
                raise ProtocolError(f"The key of {name} has changed; ask there, then delete it from peers.json.")
            if name not in known:
                fresh[name] = key
                checked = "as told" if name in self.pins else f"it must be what {name} has printed"
                self.notify(f"Key of {name}: {fingerprint(key)} ({checked}).")
        if fresh:
            write_record(path, known | fresh)

    # -- masked vectors ------------------------------------------------------------------------------------------------
    def mask(self, vector: RingVector, client: int, group: MaskingGroup, purpose: str) -> RingVector:
        """y_k; `purpose` names the run, the kind of work and the round, of which seeds are revealed once."""
        self.record_sent(vector, client, group, purpose)
        masked = vector + keystream(self.own_seed(client, group), len(vector))
        for other in group.keys:
            if other != client:
                masked = masked + signed_keystream(self.pair_seed(client, other, group), len(vector), client, other)
        return masked

    def record_sent(self, vector: RingVector, client: int, group: MaskingGroup, purpose: str) -> None:
        """Record what is sent under these masks; the difference of two vectors would be without a mask."""
        path, name = self.folder / "sent" / f"{group.context}.json", str(client)
        fresh: dict[str, Any] = {"round": purpose, "circle": group_digest(group.keys), "words": {}}
        sent: dict[str, Any] = read_json(path) if path.exists() else fresh
        digest = hashlib.blake2b(vector.tobytes(), key=self.secret, digest_size=16).hexdigest()
        if sent["words"].get(name, digest) != digest:
            raise ProtocolError(
                "This request was answered before with other numbers, and the difference of both could be read; are "
                "the data the same as then? The next round is answered again."
            )
        if name not in sent["words"]:
            write_record(path, {**sent, "words": {**sent["words"], name: digest}})

    def shares(self, client: int, group: MaskingGroup, fewest: int, threshold: int) -> bytes:
        """For every other client, in their order: shares of all seeds of this one's masks, encrypted for it.

        `threshold` of them give the seed. Where no sum may be made without someone (`fewest` is all), nobody ever has
        to make the seed of a pair's mask, and only all others together could: so the pairs' masks hide what two
        honest clients have sent from all the rest.
        """
        others = others_of(client, group)
        seeds = [self.own_seed(client, group), *(self.pair_seed(client, other, group) for other in others)]
        points, columns = [other + 1 for other in others], []
        for number, seed in enumerate(seeds):
            key = derive_seed(self.secret, f"coefficients {group.context} {client} {number}")
            needed = len(points) if number and fewest >= len(group.keys) else min(threshold, len(points))
            columns.append(split(seed, points, needed, key))
        blocks = []
        for other in others:
            plain = b"".join(column[other + 1] for column in columns)
            key = self.channel(client, other, client, group)
            # The key is of this context and direction alone, and what it encrypts is always the same: no nonce is used
            # for two texts.
            blocks.append(ChaCha20Poly1305(key).encrypt(bytes(12), plain, None))
        return b"".join(blocks)

    # -- who is left ---------------------------------------------------------------------------------------------------
    def sign(self, client: int, group: MaskingGroup, fewest: int, names: Callable[[int], str] | None = None) -> str:
        """A signature under the list of survivors: one list per kind of work and round, for ever.

        A list has at least `fewest` clients. Who is left out is said here: the sums of two rounds with and without a
        member tell of its update.
        """
        sent = self.answered(client, group, fewest)
        signed = self.folder / "signed" / f"{sent['round']}.json"
        now = {"context": group.context, "alive": list(group.alive)}
        if not signed.exists():
            write_record(signed, now)
            if group.gone and names is not None:
                left_out = ", ".join(names(each) for each in group.gone)
                kind, round = str(sent["round"]).split("-")[1:3]
                self.notify(f"{kind} of round {round} is added up without {left_out}: the organiser says it is away.")
        elif read_json(signed) != now:
            raise ProtocolError(
                "This node was told another list of survivors, or another request, for this round; with masks of both "
                "a reply could be read."
            )
        return self.signing.sign(survivors_text(group, client)).hex()

    def answered(self, client: int, group: MaskingGroup, fewest: int) -> dict[str, Any]:
        """What was sent for this request; a list of survivors that nobody may be asked to help with is refused."""
        if client not in group.alive or len(group.alive) < max(2, fewest):
            raise ProtocolError(f"Masks are revealed for at least {max(2, fewest)} clients, this one among them.")
        path = self.folder / "sent" / f"{group.context}.json"
        sent: dict[str, Any] = read_json(path) if path.exists() else {"words": {}}
        if str(client) not in sent["words"] or sent["circle"] != group_digest(group.keys):
            raise ProtocolError("Masks are revealed of a request that was answered, and for its own clients.")
        return sent

    # -- what is revealed ----------------------------------------------------------------------------------------------
    def reveal(
        self, client: int, group: MaskingGroup, fewest: int, threshold: int, blocks: Mapping[int, bytes]
    ) -> dict[str, bytes]:
        """Seeds of this client's masks that do not cancel, and its shares of the others' (`blocks`, by whose they are).

        Only under a list of at least `fewest` clients that this node has signed and that at least `threshold` clients,
        with this one, have signed.
        """
        sent = self.answered(client, group, fewest)
        signed = self.folder / "signed" / f"{sent['round']}.json"
        if not signed.exists() or read_json(signed) != {"context": group.context, "alive": list(group.alive)}:
            raise ProtocolError("Masks are revealed for the list of survivors that this node has signed, and no other.")
        agreed = [each for each, text in group.signatures.items() if signature_holds(group, each, text)]
        if len({*agreed, client} & set(group.alive)) < threshold:
            raise ProtocolError(
                f"Masks are revealed when at least {threshold} clients have signed the same list of survivors; "
                f"{len(agreed)} have."
            )
        found = {"own": self.own_seed(client, group)}
        found |= {f"pair/{other}": self.pair_seed(client, other, group) for other in group.gone}
        for other, block in blocks.items():
            shares = self.open_shares(client, other, group, block)
            if shares is not None:
                found[f"shares/{other}"] = shares
        return found

    def open_shares(self, client: int, other: int, group: MaskingGroup, block: bytes) -> bytes | None:
        """This client's shares of another's seeds, of those alone that do not cancel; None if they cannot be read."""
        if other == client or other not in group.alive:
            return None
        try:
            plain = ChaCha20Poly1305(self.channel(client, other, other, group)).decrypt(bytes(12), block, None)
        except InvalidTag:
            return None
        names = others_of(other, group)
        if len(plain) != SHARE_BYTES * (1 + len(names)):
            return None
        wanted = [0, *(1 + names.index(gone) for gone in group.gone)]
        return b"".join(plain[SHARE_BYTES * i : SHARE_BYTES * (i + 1)] for i in wanted)

    # -- seeds ---------------------------------------------------------------------------------------------------------
    def own_seed(self, client: int, group: MaskingGroup) -> bytes:
        """The seed of B_k."""
        return derive_seed(self.secret, f"own {group.context} {client}")

    def pair_seed(self, client: int, other: int, group: MaskingGroup) -> bytes:
        """The seed of S_kj, which both clients derive alike."""
        return derive_seed(self.shared(other, group), f"pair {group.context} {min(client, other)} {max(client, other)}")

    def channel(self, client: int, other: int, sender: int, group: MaskingGroup) -> bytes:
        """The key under which one of two clients sends shares to the other."""
        low, high = min(client, other), max(client, other)
        return derive_seed(self.shared(other, group), f"shares {group.context} {low} {high} {sender}")

    def shared(self, other: int, group: MaskingGroup) -> bytes:
        """A secret that only this node and the other one can compute."""
        try:
            return self.key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(group.keys[other][:64])))
        except ValueError as error:  # a point of small order
            raise ProtocolError(f"The key of client {other} is none.") from error


def others_of(client: int, group: MaskingGroup) -> list[int]:
    """The other clients of a group, in their order."""
    return [other for other in sorted(group.keys) if other != client]


def block_size(group: MaskingGroup) -> int:
    """The bytes of what one client encrypts for another."""
    return SHARE_BYTES * len(group.keys) + TAG_BYTES


def derive_seed(secret: bytes, purpose: str) -> bytes:
    """A seed for one purpose."""
    return HKDF(hashes.SHA256(), SEED_BYTES, None, f"fedframe {purpose}".encode()).derive(secret)


def write_record(path: Path, content: object) -> None:
    """Write what must be on the disk before anything follows from it."""
    write_durably(path, (json.dumps(content, indent=2) + "\n").encode())
