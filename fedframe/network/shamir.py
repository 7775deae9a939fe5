"""Secrets in shares: so many of them give the secret, and fewer say nothing about it at all.

Shamir, How to Share a Secret, Communications of the ACM 1979. The secret is q(0) of a polynomial q of degree
`threshold` - 1 over the integers modulo the prime P; a share is q(x) for an x of its own. Secrets are 32 bytes, and P
is the smallest prime above 2^256, so that every one fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

P = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, points: Sequence[int], threshold: int, key: bytes) -> dict[int, bytes]:
    """A share for every point; the other coefficients come from a key that nobody else has, the same every time."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(points) or not all(0 < x < P for x in points):
        raise ValueError("there is no such way to share this secret")
    coefficients = [int.from_bytes(secret, "big")]
    for power in range(1, threshold):
        drawn = hashlib.blake2b(power.to_bytes(4, "big"), key=key).digest()  # 512 bits: uniform modulo P but for 2^-255
        coefficients.append(int.from_bytes(drawn, "big") % P)
    shares = {}
    for x in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % P
        shares[x] = value.to_bytes(SHARE_BYTES, "big")
    return shares


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """Lagrange's weights: the secret is the sum of the shares at these points, each times its weight."""
    weights = []
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * other % P, below * (other - x) % P
        weights.append(above * pow(below, -1, P) % P)
    return weights


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret that these shares give, if they are as many as its threshold; None if they give none."""
    points = sorted(shares)
    values = [int.from_bytes(shares[x], "big") for x in points]
    secret = sum(w * v for w, v in zip(weights_at_zero(points), values, strict=True)) % P
    return secret.to_bytes(SHARE_BYTES, "big")[1:] if secret < 2**256 else None
