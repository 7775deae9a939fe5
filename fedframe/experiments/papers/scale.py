"""The size of a table's runs: a share of the work, taken equally from rounds and data, and an estimate of its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedframe.data.partition import read_partition
from fedframe.errors import SettingError
from fedframe.settings import Settings

FEWEST_ROUNDS = 3  # below that nothing is learnt and no schedule has a shape
MOST_EVALUATIONS = 50  # of a scaled run
# Training samples and classes of the public sets: an estimate must not need the data.
SIZES: dict[str, tuple[int, int]] = {
    "digits": (1438, 10),
    "mnist": (60_000, 10),
    "fashion-mnist": (60_000, 10),
    "emnist-letters": (124_800, 26),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "tiny-imagenet": (100_000, 200),
}


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
        """A sentence on what was scaled, for readers of the table."""
        if self.share == 1:
            return "Full size: as many rounds and training samples as in the paper."
        scaled = self.apply({"rounds": full_rounds})
        return (
            f"Scaled to {self.share:g} of the paper's work: {scaled['rounds']} of {full_rounds} rounds and "
            f"{100 * scaled['data_share']:.1f} % of the training samples of every class; test sets are whole. "
            "Such numbers show how methods compare after short training, not what the paper's training reaches."
        )


def local_steps(settings: Settings) -> int | None:
    """Steps of all clients in all rounds; None if the size of the data is not known before they are read."""
    size = SIZES.get(settings.data)
    clients = settings.clients or (20 if "user" not in settings.partition else None)
    if size is None or clients is None or settings.partition == "auto":
        return None
    classes = size[1]
    samples = size[0] * settings.data_share * (1 - settings.validate_share)
    imbalance = read_partition(settings.partition).imbalance
    if imbalance is not None:
        shares = [imbalance ** (-c / max(1, classes - 1)) for c in range(classes)]
        samples *= sum(shares) / classes
    if not isinstance(settings.local_test, str):
        samples *= 1 - settings.local_test
    taking_part = max(1, int(settings.participation * clients + 0.5))
    if settings.steps is not None:
        return settings.rounds * taking_part * settings.steps
    each = samples / clients
    batches = max(1.0, each / settings.batch + 0.5)  # the last batch of a client is half full on average
    return round(settings.rounds * taking_part * settings.epochs * batches)
