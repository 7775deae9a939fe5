"""Schedules of the local learning rate over the rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedframe.errors import SettingError


@dataclass(frozen=True)
class Schedule:
    """A learning rate schedule such as `step:0.1@0.5,0.75`: a factor for the learning rate of every round."""

    kind: str = "constant"
    number: float = 0.0  # cosine: the floor; exponential: the base; step: the factor
    shares: tuple[float, ...] = ()  # step: after which shares of the rounds

    @classmethod
    def read(cls, text: str) -> Schedule:
        """Parse a schedule; a SettingError lists the valid ones."""
        kind, colon, rest = text.strip().partition(":")
        try:
            if kind == "constant" and not colon:
                return cls()
            if kind == "cosine":
                return cls(kind, _within(rest or "0", 0, 1))
            if kind == "exponential":
                return cls(kind, _within(rest or "0.99", 0, 1))
            if kind == "step":
                factor, _, shares = rest.partition("@")
                places = tuple(_within(share, 0, 1) for share in (shares or "0.5,0.75").split(","))
                return cls(kind, _within(factor or "0.1", 0, 1), places)
        except ValueError:
            pass
        raise SettingError(
            f"lr_schedule = {text!r} is not known; use constant, cosine, cosine:0.01, exponential:0.99 "
            "or step:0.1@0.5,0.75 (times 0.1 after half and after three quarters of the rounds)."
        )

    def factor(self, round: int, rounds: int) -> float:
        """The factor of a round (1, 2, ...)."""
        done = round - 1
        if self.kind == "cosine":  # from 1 towards the floor, reached in the round after the last
            return self.number + (1 - self.number) * 0.5 * (1 + math.cos(math.pi * done / rounds))
        if self.kind == "exponential":
            return self.number**done
        if self.kind == "step":
            return self.number ** sum(done >= share * rounds for share in self.shares)
        return 1.0


def _within(text: str, low: float, high: float) -> float:
    number = float(text)
    if not low <= number <= high:  # also refuses NaN
        raise ValueError(text)
    return number
