"""Numbers as people read them."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """0.8312 as 83.1 %; a dash for what was not measured."""
    return "–" if share is None else f"{100 * share:.1f} %"  # noqa: RUF001


def duration(seconds: float) -> str:
    """75 as 1 min 15 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plural(count: int, what: str, several: str = "") -> str:
    """1 client, 2 clients; `several` where an s does not do."""
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def loss_text(loss: float) -> str:
    """A loss in few characters, however large."""
    return f"loss {loss:.4f}" if loss < 1000 else f"loss {loss:.1e}"
