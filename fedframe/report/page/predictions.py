"""What the shared model gets right: accuracy by class and group of classes, confusion, calibration."""

from __future__ import annotations

from fedframe.metrics.accuracy import GROUPS, accuracy_by_group, class_groups, has_tail
from fedframe.metrics.statistics import estimate
from fedframe.report.page.essentials import pooled_confusion, words
from fedframe.report.page.runs import Group, Run, Subject
from fedframe.report.page.section import Data, Section, cut_note, of_single_runs, rounded, shown_classes
from fedframe.util.text import percent

CLASSES_TITLE = "Accuracy by class"
CLASSES_READ = "Accuracy on the test samples of each class."
GROUPS_READ = (
    " Classes are many, medium or few by how much training data they have together: the classes with 75 % of the "
    "samples, those with the next 20 %, and the rest."
)
CLASSES_LATER = "Appears when the run is finished: it needs the final scores."
NO_CLASSES = "This run has no accuracy by class: it has no test data."
POOLED = {
    "per_class": "client",
    "personal_per_class": "personal",
}  # what clients count together, where labels are theirs
CLASS_MODELS = {"per_class": "shared model", "personal_per_class": "personal models"}


def classes_section(subject: Subject) -> Section:
    """Bars per class and per group of classes, of the shared and of the personal models."""
    summary = next(
        (found for run in subject.runs if has_classes(found := with_pooled(run.summary), *CLASS_MODELS)), None
    )
    if summary is None:
        finished = any(run.summary for run in subject.runs)
        return Section("classes", CLASSES_TITLE, CLASSES_READ, missing=NO_CLASSES if finished else CLASSES_LATER)
    names = list(summary.get("train_per_class") or summary.get("per_class") or summary["personal_per_class"])
    counts = [int(summary.get("train_per_class", {}).get(name, 0)) for name in names]
    models = [
        {"key": key, "label": label, "series": lines}
        for key, label in CLASS_MODELS.items()
        if (lines := [line for group in subject.groups if (line := classes_data(group, key, names)) is not None])
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
    return Section(
        "classes", CLASSES_TITLE, CLASSES_READ + GROUPS_READ if tail else CLASSES_READ, data, classes_text(data)
    )


def has_classes(summary: Data, *keys: str) -> bool:
    """Whether a run has an accuracy for any class, by one of these models."""
    return any(value is not None for key in keys for value in summary.get(key, {}).values())


def with_pooled(summary: Data) -> Data:
    """The summary; where only clients have test data, classes are scored by what they have counted together."""
    found, tables = dict(summary), summary.get("measures") or {}
    for key, score in POOLED.items():
        rows = (tables.get(score) or {}).get("per_class")
        if rows and not has_classes(summary, key):
            found[key] = {name: (one["recall"] or {}).get("value") for name, one in rows.items()}
    return found


def classes_data(group: Group, key: str, names: list[str]) -> Data | None:
    """A method's accuracies, each as mean, low, high over seeds; None if it has no such model."""
    summaries = [found for run in group.runs if has_classes(found := with_pooled(run.summary), key)]
    if not summaries:
        return None
    by_group = [accuracy_by_group(one[key], one.get("train_per_class", {})) for one in summaries]
    return {
        "label": group.label,
        "accuracy": [over_seeds([one[key].get(name) for one in summaries]) for name in names],
        "by_group": {kind: over_seeds([one[kind] for one in by_group]) for kind in GROUPS},
    }


def over_seeds(values: list[float | None]) -> list[float | None]:
    """Mean and interval over seeds: [mean, low, high]."""
    return [rounded(number, 4) for number in estimate(values).interval]


def classes_text(data: Data) -> str:
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


CONFUSION = Section(
    "confusion",
    "Confusion matrix",
    "Rows are the true classes of the test samples, columns what the shared model says; everything off the "
    "diagonal is a mistake, and a strong colour there marks a pair of classes that it mixes up.",
    wide=False,
)


def confusion_section(subject: Subject) -> Section:
    """The matrix of each method's first run."""
    return of_single_runs(subject, CONFUSION, confusion_data, confusion_text)


def confusion_data(run: Run) -> Data | None:
    """Counts with the names of the classes."""
    counts = run.examination.get("confusion")
    if not counts:
        return pooled_data(run)
    names = shown_classes(run.examination, len(counts))
    return {"classes": names, "counts": counts, "note": cut_note(run.examination, len(counts))}


def pooled_data(run: Run) -> Data | None:
    """What clients have counted together, where only they have test data."""
    found = pooled_confusion(run)
    if found is None or not run.from_nodes:
        return None
    score, table = found
    return {"classes": list(table["per_class"]), "counts": table["confusion"], "note": f"Of {words(run, score)}."}


def confusion_text(data: Data) -> str:
    """The most frequent mistakes in words."""
    counts, names = data["counts"], data["classes"]
    total = sum(map(sum, counts))
    right = sum(counts[i][i] for i in range(len(counts)))
    cells = [(counts[i][j], names[i], names[j]) for i in range(len(counts)) for j in range(len(counts)) if i != j]
    worst = sorted(cells, key=lambda cell: -cell[0])[:3]
    mistakes = ", ".join(f"{true} taken for {said} ({count} times)" for count, true, said in worst if count)
    return f"{right:,} of {total:,} test samples are right. Most frequent mistakes: {mistakes or 'none'}."


CALIBRATION = Section(
    "calibration",
    "Calibration",
    "Predictions sorted by how sure the shared model was: a point on the diagonal is right exactly as often as it "
    "claims, one below it is overconfident. The expected calibration error is the mean distance to the diagonal, over "
    "all predictions.",
    wide=False,
)


def calibration_section(subject: Subject) -> Section:
    """The reliability diagram of each method's first run."""
    return of_single_runs(subject, CALIBRATION, calibration_data, calibration_text)


def calibration_data(run: Run) -> Data | None:
    """Bins that hold a prediction."""
    found = run.examination.get("ece")
    if not found or found.get("error") is None:
        return None
    bins = [
        [rounded(b[key], 4) for key in ("from", "to", "count", "confidence", "accuracy")]
        for b in found["bins"]
        if b["count"]
    ]
    return {"error": rounded(found["error"]), "bins": bins}


def calibration_text(data: Data) -> str:
    """The calibration error in words."""
    return f"Expected calibration error {100 * data['error']:.1f} points."
