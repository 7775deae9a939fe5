"""Measures of the trade: AUROC, sensitivity, F1 and the like, of all predictions together and class by class."""

from __future__ import annotations

import math
from typing import Any

from fedframe.core.measures import METRICS, NUMBER_METRICS, is_share, metric_name, sign_of
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.scores import first_seed
from fedframe.report.page.scores import names as score_names
from fedframe.report.page.section import Data, Section, rounded
from fedframe.util.text import percent

TITLE = "Measures"
READ = (
    "How good the predictions are by other measures, with 95 % intervals. All clients' predictions count together, so "
    "clients with more test samples count more. Higher is better, except for the Brier score and the calibration error."
)
SETS = ("generic", "client", "personal")
COLUMNS = ("recall", "precision", "f1", "auroc", "average_precision")
LABEL_COLUMNS = ("auroc", "average_precision", "f1", "sensitivity")
ERRORS = ("brier", "calibration_error")


def section(subject: Subject) -> Section:
    """A table per kind of predictions, a column per method; of several seeds the first one's."""
    runs = {group.label: group.first for group in subject.groups if group.first.summary.get("measures")}
    if not runs:
        missing = "Appears when a run is finished; runs of earlier versions have none."
        return Section("measures", TITLE, READ, missing=missing)
    sets = [found for score in SETS if (found := one_set(score, runs)) is not None]
    first = sets[0]
    cells = [(row["name"], row["cells"][0]) for row in first["rows"] if row["share"] and row["cells"][0] is not None]
    alt = f"{first['label']}: " + ", ".join(f"{name} {percent(found[0])}" for name, found in cells)
    read = READ.replace("clients", "sites") if next(iter(runs.values())).from_nodes else READ
    return Section("measures", TITLE, read + first_seed(subject), {"sets": sets}, alt)


def one_set(score: str, runs: dict[str, Run]) -> Data | None:
    """All measures of one kind of predictions."""
    tables: dict[str, Any] = {label: run.summary["measures"].get(score) for label, run in runs.items()}
    tables = {label: table for label, table in tables.items() if table}
    if not tables:
        return None
    first = next(iter(tables.values()))
    rows = [
        {
            "name": name,
            "share": key not in ERRORS and is_share(key),
            "cells": [cell(table.get(key)) for table in tables.values()],
        }
        for key, name in names(first)
    ]
    return {
        "key": score,
        "label": score_names(next(iter(runs.values())))[score],
        "methods": list(tables),
        "rows": rows,
        "note": note(first),
        "classes": by_class(first),
    }


def names(table: Data) -> list[tuple[str, str]]:
    """Every measure with its name."""
    if "r2" in table:
        lower = " (lower is better)"
        return [(metric, metric_name(metric) + (lower if sign_of(metric) < 0 else "")) for metric in NUMBER_METRICS]
    at = f"{100 * table['at']:g} %"
    found = {metric: metric_name(metric) for metric in METRICS}
    found |= {
        "sensitivity": f"sensitivity at {at} specificity",
        "specificity": f"specificity at {at} sensitivity",
        "brier": "Brier score (lower is better)",
        "calibration_error": "calibration error (lower is better)",
    }
    return [(key, name) for key, name in found.items() if key in table]


def cell(found: Any) -> list[float | None] | None:
    """Value, low and high; the calibration error has no interval."""
    if found is None:
        return None
    if isinstance(found, float):
        return [rounded(found), None, None]
    return [rounded(found[key]) for key in ("value", "low", "high")]


def note(table: Data) -> str:
    """How many samples there are, and what the majority class alone would give."""
    if "majority" not in table:
        return f"{table['samples']:,} test samples."
    most = table["majority"]
    text = (
        f"{table['samples']:,} test samples; {percent(most['share'])} of them are {most['class']!r}: always saying so "
        f"would be right in {percent(most['share'])}."
    )
    if table.get("positive"):
        text += f" AUROC, average precision, sensitivity and specificity are about {table['positive']!r}."
    if table.get("auroc_bins_error") is not None:
        text += (
            " Nodes have sent histograms of scores, no single prediction: the AUROC is off by at most "
            f"{bound_text(table['auroc_bins_error'])}."
        )
    return text


def bound_text(error: float) -> str:
    """A bound in points, rounded up."""
    return f"{math.ceil(1e4 * error) / 100:g} points"


def by_class(table: Data) -> Data | None:
    """Each class against the rest."""
    if "per_target" in table or "per_label" in table:
        return by_output(table)
    if "per_class" not in table:
        return None
    rows = [[name, one["samples"], *(cell(one[key]) for key in COLUMNS)] for name, one in table["per_class"].items()]
    return {"columns": [metric_name(key) for key in COLUMNS], "rows": rows}


def by_output(table: Data) -> Data:
    """Each number that is predicted, or each label against its absence."""
    each: Data = table.get("per_target") or table["per_label"]
    columns = NUMBER_METRICS if "per_target" in table else LABEL_COLUMNS
    rows = [
        [name, one.get("samples", table["samples"]), *(cell(one[key]) for key in columns)] for name, one in each.items()
    ]
    return {"columns": [metric_name(key) for key in columns], "rows": rows, "share": "per_label" in table}
