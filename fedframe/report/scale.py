"""Axes that people can read: round ticks, and short numbers at them."""

from __future__ import annotations

import math


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Give about `most` round numbers from at or below `low` to at or above `high`, whole on request."""
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def labels(values: list[float]) -> list[str]:
    """Write the ticks of one axis with the same number of decimals, no more than they need."""
    for places in range(7):
        if all(math.isclose(round(v, places), v, rel_tol=1e-9, abs_tol=1e-12) for v in values):
            return [f"{v:,.{places}f}" for v in values]
    return [f"{v:.3g}" for v in values]


def short(count: float) -> str:
    """Write a count in at most four or five characters: 950, 1.2k, 34k, 5.1M."""
    for limit, factor, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if count >= limit * (0.9995 if unit == "M" else 1):
            value = count / factor
            return f"{value:.1f}".removesuffix(".0") + unit if value < 9.95 else f"{value:.0f}{unit}"
    return f"{count:.0f}"
