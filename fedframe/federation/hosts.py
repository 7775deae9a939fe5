"""Where nodes find the organiser: names and addresses that certificates and network programs accept."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import idna

from fedframe.errors import SettingError

LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
MAX_LENGTH = 253  # characters of a name
EXAMPLE = "fl.example.org"


def read_host(text: str, port: int = 8443) -> str:
    """A name in ASCII letters, or an address; what nodes cannot dial is refused."""
    if (found := plain_host(text)) is not None:
        return found
    name, number = probably_meant(text, port)
    raise SettingError(
        f"host = {text[:80]!r}: write a name or an address that nodes can dial, and nothing else, such as "
        f"--host {name} --port {number}."
    )


def plain_host(text: str) -> str | None:
    """The name or address as nodes dial it, or None if it is neither."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return plain_name(text)
    # Nobody can dial "all addresses"; the zone of an IPv6 address means something on one machine only.
    return None if address.is_unspecified or address.is_multicast or "%" in text else str(address)


def plain_name(text: str) -> str | None:
    """A name of one or more labels; characters beyond ASCII become xn--... (IDNA 2008)."""
    try:
        name = (text if text.isascii() else idna.encode(text, uts46=True).decode()).removesuffix(".")
    except idna.IDNAError:
        return None
    labels = name.split(".")
    # A last label of digits alone is a mistyped address: 10.1.2 or 300.1.2.3.
    fine = len(name) <= MAX_LENGTH and all(map(LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    return name if fine else None


def probably_meant(text: str, port: int) -> tuple[str, int]:
    """The name and port that were probably meant, by https://fl.example.org:9000/ say; an example if there are none."""
    try:
        parts = urlsplit(text if "//" in text else f"//{text}")
        name, number = parts.hostname or "", parts.port or port
    except ValueError:
        return EXAMPLE, port
    return (name, number) if plain_host(name) is not None else (EXAMPLE, port)
