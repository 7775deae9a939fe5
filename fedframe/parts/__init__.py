"""Parts: one idea per file. `PARTS` lists them by name."""

from __future__ import annotations

from fedframe.core.part import Part
from fedframe.parts.cross_entropy import CrossEntropy
from fedframe.parts.fine_tune import FineTune
from fedframe.parts.linear_head import LinearHead
from fedframe.parts.mean import Mean

PARTS: dict[str, type[Part]] = {part.name: part for part in (LinearHead, CrossEntropy, Mean, FineTune)}

# What fills a slot that no part of a recipe claims: together they are FedAvg with plain fine-tuning.
DEFAULTS: tuple[type[Part], ...] = (LinearHead, CrossEntropy, Mean, FineTune)
