"""The local learning rate over rounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedframe.errors import SettingError

if TYPE_CHECKING:
    from fedframe.settings import Settings


def learning_rate(settings: Settings, round: int) -> float:
    """The local learning rate of a round (1, 2, ...)."""
    name, _, text = settings.lr_schedule.partition(":")
    done = round - 1
    if name == "cosine":  # from lr towards `text` times lr (default 0), which the round after the last would have
        floor = float(text or 0.0)
        return settings.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done / settings.rounds)))
    if name == "exponential":
        return settings.lr * float(text or 0.99) ** done
    if name == "step":  # step:0.1@0.5,0.75 = times 0.1 after half and after three quarters of the rounds
        factor, _, shares = (text or "0.1@0.5,0.75").partition("@")
        passed = sum(done >= float(share) * settings.rounds for share in (shares or "0.5,0.75").split(","))
        return settings.lr * float(factor) ** passed
    return settings.lr


def check_schedule(text: str) -> str:
    """Refuse a schedule that `learning_rate` would not understand."""
    name, _, rest = text.partition(":")
    try:
        numbers = [float(piece) for piece in rest.replace("@", ",").split(",") if piece]
    except ValueError:
        numbers = [-1.0]
    if name not in ("constant", "cosine", "exponential", "step") or any(number < 0 for number in numbers):
        raise SettingError(
            f"lr_schedule = {text!r} is not known; use constant, cosine, cosine:0.01, exponential:0.99 "
            "or step:0.1@0.5,0.75 (times 0.1 after half and after three quarters of the rounds)."
        )
    return text
