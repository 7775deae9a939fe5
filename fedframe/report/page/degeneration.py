"""FedLoGe's feature degeneration: which features carry a class, and how many of them are needed."""

from __future__ import annotations

from fedframe.report.page.names import shown_classes
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, by_run, rounded, why_not_examined

TITLE = "Feature degeneration"
READ = (
    "First each class's mean feature, largest entries first; a steep fall means that few features carry the class. "
    "Then the accuracy when only that share of the features is kept; a flat line means that the rest was noise."
)
MOST_FEATURES, MOST_CLASSES = 256, 20


def section(subject: Subject) -> Section:
    """Sorted class means and the pruning curve of each method's first run."""
    variants = by_run(subject, build)
    if not variants:
        return Section("degeneration", TITLE, READ, missing=why_not_examined(subject))
    pruning = variants[0]["data"]["pruning"]
    alt = "; ".join(
        f"{kept:.0%} of the features kept: {accuracy:.1%}" for kept, accuracy in pruning if accuracy is not None
    )
    return Section("degeneration", TITLE, READ, {"variants": variants}, alt)


def build(run: Run) -> Data | None:
    """Curves with at most as many points as a screen shows."""
    found = run.examination.get("degeneration")
    if not found or not found.get("sorted_means"):
        return None
    means = found["sorted_means"]
    step = max(1, -(-len(means[0]) // MOST_FEATURES))
    names = shown_classes(run.examination, len(means))
    return {
        "classes": names[:MOST_CLASSES],
        "step": step,
        "means": [[rounded(value, 4) for value in row[::step]] for row in means[:MOST_CLASSES]],
        "variance": [rounded(value, 4) for value in (found.get("variance") or [])[::step]],
        "pruning": [[rounded(point["kept"], 4), rounded(point["accuracy"], 4)] for point in found.get("pruning") or []],
        "note": f"The first {MOST_CLASSES} classes are shown." if len(means) > MOST_CLASSES else "",
    }
