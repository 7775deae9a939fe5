"""Which settings are not the same for all methods: a reader has to know them to judge the numbers."""

from __future__ import annotations

from typing import Any

from fedframe.experiments.compare.address import OWN
from fedframe.experiments.compare.plan import AS_THEY_ARE
from fedframe.experiments.compare.result import Comparison


def settings_by_method(comparison: Comparison) -> list[dict[str, Any]]:
    """Every method's settings of the run and, of its parts, those that were set."""
    found = []
    for row in comparison.plan.rows:
        candidate = comparison.chosen(row.label) or AS_THEY_ARE
        settings = comparison.plan.settings_of(row, candidate, comparison.plan.seeds[0])
        parts = {f"{part}.{key}": value for part, each in settings.set.items() for key, value in each.items()}
        found.append({**{name: getattr(settings, name) for name in OWN}, **parts})
    return found


def differing_settings(comparison: Comparison) -> dict[str, list[str]]:
    """Of every setting that differs, its value by method; empty where a method does not have it, or has its default."""
    found = settings_by_method(comparison)
    names = [*dict.fromkeys(name for values in found for name in values)]
    by_name = {name: [text(values.get(name)) for values in found] for name in names}
    return {name: texts for name, texts in by_name.items() if len(set(texts)) > 1}


def text(value: object) -> str:
    """A value as people write it."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
