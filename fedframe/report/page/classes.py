"""Accuracy by class, and of frequent, middling and rare classes."""

from __future__ import annotations

from fedframe.metrics.accuracy import GROUPS, accuracy_by_group, class_groups, has_tail
from fedframe.metrics.statistics import estimate
from fedframe.report.page.runs import Group, Subject
from fedframe.report.page.section import Data, Section, rounded
from fedframe.util.text import percent

TITLE = "Accuracy by class"
READ = "Accuracy on the test samples of each class."
READ_GROUPS = (
    " Classes are many, medium or few by how much training data they have together: the classes with 75 % of the "
    "samples, those with the next 20 %, and the rest."
)
LATER = "Appears when the run is finished: it needs the final scores."
NONE = "This run has no accuracy by class: it has no test data."
MODELS = {"per_class": "shared model", "personal_per_class": "personal models"}


def section(subject: Subject) -> Section:
    """Bars per class and per group of classes, of the shared and of the personal models."""
    summary = next((run.summary for run in subject.runs if any(known(run.summary, key) for key in MODELS)), None)
    if summary is None:
        finished = any(run.summary for run in subject.runs)
        return Section("classes", TITLE, READ, missing=NONE if finished else LATER)
    names = list(summary.get("train_per_class") or summary["per_class"])
    counts = [int(summary.get("train_per_class", {}).get(name, 0)) for name in names]
    models = [
        {"key": key, "label": label, "series": lines}
        for key, label in MODELS.items()
        if (lines := [line for group in subject.groups if (line := build(group, key, names)) is not None])
    ]
    tail = any(has_tail(run.summary.get("train_per_class", {})) for run in subject.runs)
    groups = class_groups(counts) if tail and any(counts) else [""] * len(names)
    data = {
        "classes": names,
        "counts": counts,
        "groups": groups,
        "kinds": list(GROUPS) if tail else [],
        "models": models,
    }
    return Section("classes", TITLE, READ + READ_GROUPS if tail else READ, data, spoken(data))


def known(summary: Data, key: str) -> bool:
    """Whether a run has an accuracy for any class."""
    return any(value is not None for value in summary.get(key, {}).values())


def build(group: Group, key: str, names: list[str]) -> Data | None:
    """A method's accuracies, each as mean, low, high over seeds; None if it has no such model."""
    summaries = [run.summary for run in group.runs if known(run.summary, key)]
    if not summaries:
        return None
    by_group = [accuracy_by_group(one[key], one.get("train_per_class", {})) for one in summaries]
    return {
        "label": group.label,
        "accuracy": [over_seeds([one[key].get(name) for one in summaries]) for name in names],
        "by_group": {kind: over_seeds([one[kind] for one in by_group]) for kind in GROUPS},
    }


def over_seeds(values: list[float | None]) -> list[float | None]:
    """Mean, low, high."""
    return [rounded(number, 4) for number in estimate(values).interval]


def spoken(data: Data) -> str:
    """Groups and extremes in words."""
    texts = []
    for line in data["models"][0]["series"]:
        groups = ", ".join(f"{kind} {percent(line['by_group'][kind][0])}" for kind in data["kinds"])
        groups += "; " if groups else ""
        pairs = zip(line["accuracy"], data["classes"], strict=True)
        shown = [(row[0], name) for row, name in pairs if row[0] is not None]
        low, high = min(shown), max(shown)
        texts.append(
            f"{line['label']}: {groups}worst class {low[1]} with {percent(low[0])}, best class {high[1]} with "
            f"{percent(high[0])}."
        )
    return f"{data['models'][0]['label']}. " + " ".join(texts)
