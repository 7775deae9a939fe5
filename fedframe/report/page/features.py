"""Features of the shared model: on a plane by class and client, and how many of them carry the classes (FedLoGe)."""

from __future__ import annotations

from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, of_single_runs, rounded, shown_classes

EMBEDDINGS = {"pca": "principal components", "tsne": "t-SNE"}
FEATURES = Section(
    "features",
    "Feature space",
    "Each point is a training sample as the shared model sees it; points of one class should lie together, and those "
    "of one client should not: clusters by client mean that the model has learned who, not what.",
)


def features_section(subject: Subject) -> Section:
    """The features of each method's first run on a plane."""
    return of_single_runs(subject, FEATURES, features_data, features_text)


def features_data(run: Run) -> Data | None:
    """Coordinates, classes and clients of the points."""
    found = run.examination.get("embedding")
    if not found or not found.get("x"):
        return None
    clients = sorted({int(client) for client in found["client"]})
    return {
        "method": EMBEDDINGS.get(found["method"], str(found["method"])),
        "x": [rounded(value, 4) for value in found["x"]],
        "y": [rounded(value, 4) for value in found["y"]],
        "class": found["class"],
        "client": found["client"],
        "classes": [str(name) for name in run.examination.get("classes") or []],
        "clients": {str(client): run.client_name(client) if client >= 0 else "unknown" for client in clients},
    }


def features_text(data: Data) -> str:
    """How many points of how many classes, in words."""
    return f"{len(data['x'])} training samples of {len(set(data['class']))} classes by {data['method']}."


DEGENERATION = Section(
    "degeneration",
    "Feature degeneration",
    "First each class's mean feature, largest entries first: a steep fall means that few features carry the class, and "
    "a band that stays wide where the line is low means that the rest is noise. Then the accuracy when every class "
    "keeps only its largest, or only its smallest features: the earlier the first line is flat, the fewer are needed.",
)
MOST_CLASSES = 20


def degeneration_section(subject: Subject) -> Section:
    """Sorted class means and the pruning curve of each method's first run."""
    return of_single_runs(subject, DEGENERATION, degeneration_data, degeneration_text)


def degeneration_data(run: Run) -> Data | None:
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


def degeneration_text(data: Data) -> str:
    """The pruning curve in words."""
    return "; ".join(
        f"{kept:.0%} of the features kept: {accuracy:.1%}"
        for kept, accuracy, _ in data["pruning"]
        if accuracy is not None
    )
