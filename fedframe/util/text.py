"""Formatting of numbers for people."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """Format a share, 0.8312 as 83.1 %; a dash for None."""
    return "–" if share is None else f"{100 * share:.1f} %"  # noqa: RUF001


def duration(seconds: float) -> str:
    """Format seconds, 75 as 1 min 15 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plural(count: int, what: str, several: str = "") -> str:
    """Format a count with its noun: 1 client, 2 clients; `several` is the plural if it is not regular."""
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def loss_text(loss: float) -> str:
    """Format a loss in few characters, however large."""
    return f"loss {loss:.4f}" if loss < 1000 else f"loss {loss:.1e}"
