"""A scaled version of a table's runs: a share of the work, taken equally from the rounds and from the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedframe.errors import SettingError
from fedframe.settings import Settings

FEWEST_ROUNDS = 3  # below that nothing is learnt and no schedule has a shape
MOST_EVALUATIONS = 50  # of a scaled run


@dataclass(frozen=True)
class Scale:
    """A share of the paper's work, above 0 and at most 1."""

    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise SettingError(f"scale = {self.share:g}: it must be above 0 and at most 1; use scale = 0.05.")

    @property
    def factor(self) -> float:
        """What rounds and training samples are multiplied by: local steps then shrink by the share."""
        return math.sqrt(self.share)

    def apply(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Fewer rounds and fewer samples; all else, the number of clients among it, is the paper's.

        Warm-ups and schedules are shares of the rounds, so they follow by themselves.
        """
        if self.share == 1:
            return dict(values)
        rounds = int(values.get("rounds", Settings.model_fields["rounds"].default))
        every = int(values.get("eval_every", Settings.model_fields["eval_every"].default))
        scaled = max(min(FEWEST_ROUNDS, rounds), round(rounds * self.factor))
        # The last five evaluations then span the same share of the run as in the paper. But test sets do not shrink:
        # with all of the paper's evaluations, a small run would do little else.
        between = max(1, round(every * scaled / rounds), math.ceil(scaled / MOST_EVALUATIONS)) if every else 0
        return {**values, "rounds": scaled, "eval_every": between, "data_share": round(self.factor, 4)}

    def sentence(self, full_rounds: int) -> str:
        """What was scaled, for whoever reads the table."""
        if self.share == 1:
            return "Full size: as many rounds and training samples as in the paper."
        scaled = self.apply({"rounds": full_rounds})
        return (
            f"Scaled to {self.share:g} of the paper's work: {scaled['rounds']} of {full_rounds} rounds and "
            f"{100 * scaled['data_share']:.1f} % of the training samples of every class; test sets are whole. "
            "Such numbers show how methods compare after short training, not what the paper's training reaches."
        )
