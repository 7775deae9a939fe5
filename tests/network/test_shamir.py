"""Secret sharing: enough shares give the secret, fewer fit any secret, and the field is one."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.network.shamir import SECRET_BYTES, SHARE_BYTES, P, join, split, weights_at_zero


def polynomial(shares: dict[int, bytes], x: int) -> int:
    """What the polynomial through these shares is at x: Lagrange's formula with fractions of integers modulo P."""
    total = 0
    for i, share in shares.items():
        term = int.from_bytes(share, "big")
        for j in shares:
            if j != i:
                term = term * (x - j) * pow(i - j, P - 2, P)
        total += term
    return total % P


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data(), secret=st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES), count=st.integers(1, 12))
def test_any_enough_shares_give_the_secret_and_fewer_do_not(data: st.DataObject, secret: bytes, count: int) -> None:
    threshold = data.draw(st.integers(1, count))
    points = data.draw(st.lists(st.integers(1, 10**6), min_size=count, max_size=count, unique=True))
    shares = split(secret, points, threshold, b"key")
    chosen = data.draw(st.permutations(points))
    enough = {x: shares[x] for x in chosen[:threshold]}
    assert join(enough) == secret
    assert polynomial(enough, 0) == int.from_bytes(secret, "big")
    assert join(shares) == secret  # more do as well: all lie on one polynomial
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    few = {x: shares[x] for x in chosen[: threshold - 1]}
    if few:
        # Whatever the secret were, there is a polynomial of this degree through it and the few.
        other = {**few, 0: secrets.randbelow(2**256).to_bytes(SHARE_BYTES, "big")}
        assert all(polynomial(other, x) == int.from_bytes(few[x], "big") for x in few)
        assert join(few) != secret


def test_the_modulus_is_a_prime_above_every_secret() -> None:
    """Miller and Rabin's test with forty bases: a number that is none passes with a chance of 4^-40."""
    assert P > 2**256
    odd, twos = P - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, P)
        for _ in range(twos):
            if x in (1, P - 1):
                break
            x = x * x % P
        assert x in (1, P - 1)


def test_the_weights_are_those_of_lagrange() -> None:
    """For x = 1, 2, 3 they are 3, -3, 1."""
    assert weights_at_zero([1, 2, 3]) == [3, P - 3, 1]


def test_a_key_gives_the_same_shares_and_another_key_others() -> None:
    one, same, other = (split(bytes(32), [1, 2, 3], 2, key) for key in (b"a", b"a", b"b"))
    assert one == same
    assert all(one[x] != other[x] for x in one)


@pytest.mark.parametrize(
    ("secret", "points", "threshold"), [(b"", [1], 1), (bytes(32), [1, 2], 3), (bytes(32), [0], 1)]
)
def test_what_cannot_be_shared_is_refused(secret: bytes, points: list[int], threshold: int) -> None:
    with pytest.raises(ValueError, match="no such way"):
        split(secret, points, threshold, b"key")
