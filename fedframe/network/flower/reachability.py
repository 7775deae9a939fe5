"""Finds out why a SuperLink cannot be reached: tries its address as a SuperNode would, through the same proxy."""

from __future__ import annotations

import datetime
import email.utils
import socket
import ssl
import threading
from pathlib import Path

import httpx

TOTAL_TIMEOUT = 8.0  # seconds of an attempt: a name server that does not answer may take longer
STEP_TIMEOUT = 5.0  # seconds of each step of it
MAX_AHEAD, MAX_BEHIND = 5.0, 300.0  # seconds by which a node's clock may be off before Flower refuses its signatures
CLOCK_RESOLUTION = 2.0  # seconds: the other clock gives whole ones, and an answer travels
BUSY = (502, 503, 504)  # a SuperLink with too many callers, or a proxy before one that is gone
EXPIRED = (9, 10)  # OpenSSL: a certificate is not valid yet, or no more
OTHER_NAME = (62, 64)  # OpenSSL: a certificate is of another name or address


def connection_problem(address: str, ca: Path) -> str | None:
    """Why a node that trusts this CA alone gets no answer at an address; None if it gets one."""
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(_attempt(address, ca)), name="fedframe-reach", daemon=True)
    thread.start()
    thread.join(TOTAL_TIMEOUT)  # a thread: nothing ends a look-up of a name, and Ctrl-C must not wait for it
    return found[0] if found else no_answer(address)


def _attempt(address: str, ca: Path) -> str | None:
    try:
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusted.load_verify_locations(ca)
        with httpx.Client(verify=trusted, timeout=STEP_TIMEOUT) as client:
            answer = client.head(f"https://{address}/v1/fleet/")
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        return explain(error, address)
    if answer.status_code in BUSY:
        return f"{address} is too busy to answer (it says {answer.status_code})"
    return clock_problem(answer.headers.get("date", ""))


def no_answer(address: str) -> str:
    """The reason where nothing comes back at all."""
    return f"{address} does not answer (is that machine on, and does a firewall let the port through?)"


def explain(error: BaseException, address: str) -> str:
    """What went wrong with a call, as a part of a sentence."""
    causes = cause_chain(error)
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _explain_certificate(cause, address)
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
            return no_answer(address)
    return f"{address} cannot be reached ({one_line(causes[-1])})"


def _explain_certificate(error: ssl.SSLCertVerificationError, address: str) -> str:
    if error.verify_code in EXPIRED:
        return f"the certificate of {address} is not valid today (is this machine's clock right?)"
    if error.verify_code in OTHER_NAME:
        return f"the certificate at {address} is of another name (the organiser gives all names with --host)"
    return f"another federation is served at {address} (its certificate is not of this one)"


def is_foreign_certificate(error: BaseException) -> bool:
    """Whether the server that answers is not certified by our CA."""
    found = [cause for cause in cause_chain(error) if isinstance(cause, ssl.SSLCertVerificationError)]
    return any(cause.verify_code not in (*EXPIRED, *OTHER_NAME) for cause in found)


def is_refused(error: BaseException) -> bool:
    """Whether no program listens there."""
    return any(isinstance(cause, ConnectionRefusedError) for cause in cause_chain(error))


def cause_chain(error: BaseException) -> list[BaseException]:
    """An error and its causes, the first cause last; httpx wraps twice."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def clock_problem(date: str) -> str | None:
    """The reason if this machine's clock is so far from the one that sent this date that signatures are refused."""
    try:
        theirs = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return None
    ahead = (datetime.datetime.now(datetime.UTC) - theirs).total_seconds()
    if -MAX_BEHIND - CLOCK_RESOLUTION < ahead < MAX_AHEAD + CLOCK_RESOLUTION:
        return None
    if ahead > 0:  # an answer that was long on its way looks the same
        later = f"{ahead:.0f} s ahead of the organiser's"
        return f"this machine's clock is {later}, or its answers take that long; set the clock"
    return f"this machine's clock is {-ahead:.0f} s behind the organiser's; set it"


def one_line(error: BaseException, max_length: int = 200) -> str:
    """An error in one line."""
    return " ".join(str(error).split())[:max_length] or type(error).__name__
