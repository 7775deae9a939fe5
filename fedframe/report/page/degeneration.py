"""FedLoGe's feature degeneration: which features carry a class, and how many of them are needed."""

from __future__ import annotations

from fedframe.report.page.names import shown_classes
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, of_single_runs, rounded

TITLE = "Feature degeneration"
READ = (
    "First each class's mean feature, largest entries first: a steep fall means that few features carry the class, and "
    "a band that stays wide where the line is low means that the rest is noise. Then the accuracy when every class "
    "keeps only its largest, or only its smallest features: the earlier the first line is flat, the fewer are needed."
)
MOST_CLASSES = 20


def section(subject: Subject) -> Section:
    """Sorted class means and the pruning curve of each method's first run."""
    return of_single_runs(subject, Section("degeneration", TITLE, READ), build, spoken)


def build(run: Run) -> Data | None:
    """Curves by the rank of a feature; a class with too few test samples has none."""
    found = run.examination.get("degeneration")
    if not found or not found.get("sorted_means"):
        return None
    names = shown_classes(run.examination, len(found["sorted_means"]))
    pairs = [(name, row) for name, row in zip(names, found["sorted_means"], strict=True) if row]
    return {
        "ranks": [int(rank) + 1 for rank in found["ranks"]],
        "classes": [name for name, _ in pairs[:MOST_CLASSES]],
        "means": [[rounded(value, 4) for value in row] for _, row in pairs[:MOST_CLASSES]],
        "mean": [rounded(value, 4) for value in found["mean"]],
        "variance": [rounded(value, 4) for value in found["variance"]],
        "pruning": [
            [rounded(point[key], 4) for key in ("kept", "accuracy", "smallest_kept")]
            for point in found.get("pruning") or []
        ],
        "note": f"The first {MOST_CLASSES} classes are shown." if len(pairs) > MOST_CLASSES else "",
    }


def spoken(data: Data) -> str:
    """The pruning curve in words."""
    return "; ".join(
        f"{kept:.0%} of the features kept: {accuracy:.1%}"
        for kept, accuracy, _ in data["pruning"]
        if accuracy is not None
    )
