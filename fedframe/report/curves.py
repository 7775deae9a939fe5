"""Accuracy over rounds of one or more runs, as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedframe.errors import DataError
from fedframe.report.svg import curves_picture
from fedframe.runs.folder import RunFolder
from fedframe.settings import data_text, short_method
from fedframe.util.text import percent

SCORES = {"generic": "global test set", "client": "clients' own tests", "personal": "personal models"}


def run_curves(folders: Sequence[Path]) -> str:
    """One line per score of a single run; one line per run of several: generic, or personal if none shares a model."""
    runs = {str(folder): RunFolder.open(folder) for folder in folders}
    names = dict(zip(runs, run_names([Path(folder) for folder in runs], runs.values()), strict=True))
    series: dict[str, list[tuple[float, float]]] = {}
    metrics = {folder: run.metrics() for folder, run in runs.items()}
    shared = any(line.get("generic") is not None for lines in metrics.values() for line in lines)
    compared = "generic" if shared else "personal"
    for folder, run in runs.items():
        lines = metrics[folder]
        for score in SCORES if len(runs) == 1 else (compared,):
            points = [(line["round"], 100 * line[score]) for line in lines if line.get(score) is not None]
            if points:
                label = SCORES[score] if len(runs) == 1 else names[folder]
                if run.settings().validate_share and score == "generic" and len(runs) == 1:
                    label = "validation data"
                series[label] = points
    if not series:
        raise DataError(f"{folders[0]} has no evaluated round yet; run it with --eval-every 1.")
    settings = [run.settings() for run in runs.values()]
    jobs = {(one.data, one.partition) for one in settings}
    where = (
        f"{data_text(settings[0].data.rpartition('/')[2])}, {settings[0].partition}"
        if len(jobs) == 1
        else "different data"
    )
    title = (
        f"{short_method(settings[0].method)} on {where}"
        if len(runs) == 1
        else f"{'Shared' if shared else 'Personal'} models on {where}"
    )
    tested = {"validation data" if one.validate_share else "global test set" for one in settings}
    last = ", ".join(f"{label}: {percent(points[-1][1] / 100)}" for label, points in series.items())
    if len(runs) > 1:
        meaning = f"generic accuracy: shared model, {' or '.join(sorted(tested))}" if shared else "personal accuracy"
        absent = [name for name in names.values() if name not in series]
        last = f"{last} ({meaning})" + (f"; without a generic score: {', '.join(absent)}" if absent and shared else "")
    return curves_picture(series, title, "round", "accuracy (%)", f"After the last round: {last}")


def run_names(paths: Sequence[Path], runs: Iterable[RunFolder]) -> list[str]:
    """What tells runs apart: their methods, else their folders' names, else the folders themselves."""
    methods = [short_method(run.settings().method) for run in runs]
    folders = [path.name for path in paths]
    return next((names for names in (methods, folders) if len(set(names)) == len(names)), [str(path) for path in paths])
