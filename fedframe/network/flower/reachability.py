"""Why a SuperLink cannot be reached, in words: a look at its address as a SuperNode would take it, proxy and all."""

from __future__ import annotations

import datetime
import email.utils
import socket
import ssl
import threading
from pathlib import Path

import httpx

LIMIT = 8.0  # seconds of a look: a name server that does not answer may take longer
CALL = 5.0  # seconds of each step of it
AHEAD, BEHIND = 5.0, 300.0  # seconds by which a node's clock may be off before Flower refuses its signatures
COARSE = 2.0  # seconds that are not known of the other clock: it tells whole ones, and an answer travels
BUSY = (502, 503, 504)  # a SuperLink with too many callers, or a proxy before one that is gone
CLOCK = (9, 10)  # OpenSSL: a certificate is not valid yet, or no more
NAME = (62, 64)  # OpenSSL: a certificate is of another name or address


def why_not(address: str, ca: Path) -> str | None:
    """Why nobody who trusts this CA alone gets an answer at an address; None if one comes."""
    found: list[str | None] = []
    looker = threading.Thread(target=lambda: found.append(_look(address, ca)), name="fedframe-look", daemon=True)
    looker.start()
    looker.join(LIMIT)  # a thread: nothing ends a look-up of a name, and Ctrl-C must not wait for it
    return found[0] if found else silence(address)


def _look(address: str, ca: Path) -> str | None:
    try:
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusted.load_verify_locations(ca)
        with httpx.Client(verify=trusted, timeout=CALL) as client:
            answer = client.head(f"https://{address}/v1/fleet/")
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        return explained(error, address)
    if answer.status_code in BUSY:
        return f"{address} is too busy to answer (it says {answer.status_code})"
    return clocks_apart(answer.headers.get("date", ""))


def silence(address: str) -> str:
    """Nothing comes back at all."""
    return f"{address} does not answer (is that machine on, and does a firewall let the port through?)"


def explained(error: BaseException, address: str) -> str:
    """What went wrong with a call, as a part of a sentence."""
    causes = chain(error)
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate(cause, address)
        if isinstance(cause, ssl.SSLError):
            return f"what listens at {address} does not speak TLS with us (is it the right port?)"
        if isinstance(cause, socket.gaierror):
            host = address.rpartition(":")[0]
            return f"the name {host} cannot be looked up (is it spelt right, and is this machine on the network?)"
        if isinstance(cause, ConnectionRefusedError):
            return f"nobody listens at {address} (does 'fedframe federation serve' run there?)"
        if isinstance(cause, httpx.ProxyError):
            return f"the proxy does not let us through to {address} ({one_line(cause)})"
        if isinstance(cause, TimeoutError | httpx.TimeoutException):
            return silence(address)
    return f"{address} cannot be reached ({one_line(causes[-1])})"


def _certificate(error: ssl.SSLCertVerificationError, address: str) -> str:
    if error.verify_code in CLOCK:
        return f"the certificate of {address} is not valid today (is this machine's clock right?)"
    if error.verify_code in NAME:
        return f"the certificate at {address} is of another name (the organiser gives all names with --host)"
    return f"another federation is served at {address} (its certificate is not of this one)"


def of_another(error: BaseException) -> bool:
    """Whether somebody answers whom the CA does not vouch for."""
    found = [cause for cause in chain(error) if isinstance(cause, ssl.SSLCertVerificationError)]
    return any(cause.verify_code not in (*CLOCK, *NAME) for cause in found)


def refused(error: BaseException) -> bool:
    """Whether nobody listens there."""
    return any(isinstance(cause, ConnectionRefusedError) for cause in chain(error))


def chain(error: BaseException) -> list[BaseException]:
    """An error and what it came of, the first cause last; httpx wraps twice."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def clocks_apart(date: str) -> str | None:
    """Whether this machine's clock is so far from one that just said this that signatures are refused."""
    try:
        theirs = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return None
    ahead = (datetime.datetime.now(datetime.UTC) - theirs).total_seconds()
    if -BEHIND - COARSE < ahead < AHEAD + COARSE:
        return None
    return f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the organiser's; set it"


def one_line(error: BaseException) -> str:
    """An error in a line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
