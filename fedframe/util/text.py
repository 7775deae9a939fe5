"""Formatting of numbers for people."""

from __future__ import annotations

from collections.abc import Mapping


def percent(share: float | None) -> str:
    """Format a share, 0.8312 as 83.1 %; a dash for None."""
    return "–" if share is None else f"{100 * share:.1f} %"  # noqa: RUF001


def figure(value: float | None, share: bool) -> str:
    """Format a score: in percent if it is a share, else as the number that it is."""
    return percent(value) if share or value is None else f"{value:.4g}"


def interval(score: Mapping[str, float | None], share: bool = True) -> str:
    """Format the interval of a score, [81.0, 85.2]; nothing where there is none."""
    low, high = score.get("low"), score.get("high")
    if low is None or high is None:
        return ""
    return f"[{100 * low:.1f}, {100 * high:.1f}]" if share else f"[{low:.4g}, {high:.4g}]"


def change(value: float, share: bool) -> str:
    """Format a difference of scores with its sign: in points of percent if they are shares."""
    return f"{100 * value:+.1f}" if share else f"{value:+.3g}"


def points(share: bool) -> str:
    """What differences of scores are counted in, behind their number."""
    return " points" if share else ""


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


def sentence(text: str) -> str:
    """Words as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def plural(count: int, what: str, several: str = "") -> str:
    """Format a count with its noun: 1 client, 2 clients; `several` is the plural if it is not regular."""
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def loss_text(loss: float) -> str:
    """Format a loss in few characters, however large."""
    return f"loss {loss:.4f}" if loss < 1000 else f"loss {loss:.1e}"
