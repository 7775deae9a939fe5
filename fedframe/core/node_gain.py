"""What a node says it gains by joining, as plain numbers of its last reply: only where it chose to (`--tell-gain`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedframe.core.measures import bounds_of
from fedframe.core.message import Number

ENDS = ("value", "low", "high")
ALONE, GAIN = "alone", "gain"
NodeGain = tuple[dict[str, float], dict[str, float]]  # the score alone, and the difference


def gain_numbers(alone: Mapping[str, float], gained: Mapping[str, float]) -> dict[str, Number]:
    """The score alone and the difference, each with its interval."""
    return {f"{what}_{end}": float(each[end]) for what, each in ((ALONE, alone), (GAIN, gained)) for end in ENDS}


def read_gain(numbers: Mapping[str, Number], metric: str = "accuracy") -> NodeGain | None:
    """What a reply says, if it says so and the metric can have such a score and such a difference, ends in order."""
    found, bounds = [], bounds_of(metric)
    apart = bounds[1] - bounds[0]
    for what, least, most in ((ALONE, *bounds), (GAIN, -apart, apart)):
        values = {end: numbers.get(f"{what}_{end}") for end in ENDS}
        if not all(isinstance(value, float) and math.isfinite(value) for value in values.values()):
            return None
        read = {end: float(value) for end, value in values.items() if value is not None}
        if not least <= read["low"] <= read["value"] <= read["high"] <= most:
            return None
        found.append(read)
    return found[0], found[1]
