"""What the net sees: features of training samples on a plane, by class and by client."""

from __future__ import annotations

from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, of_single_runs, rounded

TITLE = "Feature space"
METHODS = {"pca": "principal components", "tsne": "t-SNE"}
READ = (
    "Each point is a training sample as the shared model sees it; points of one class should lie together, and those "
    "of one client should not: clusters by client mean that the model has learned who, not what."
)


def section(subject: Subject) -> Section:
    """The plane of each method's first run."""
    return of_single_runs(subject, Section("features", TITLE, READ), build, spoken)


def build(run: Run) -> Data | None:
    """Places, classes and clients of the points."""
    found = run.examination.get("embedding")
    if not found or not found.get("x"):
        return None
    clients = sorted({int(client) for client in found["client"]})
    return {
        "method": METHODS.get(found["method"], str(found["method"])),
        "x": [rounded(value, 4) for value in found["x"]],
        "y": [rounded(value, 4) for value in found["y"]],
        "class": found["class"],
        "client": found["client"],
        "classes": [str(name) for name in run.examination.get("classes") or []],
        "clients": {str(client): run.client_name(client) if client >= 0 else "unknown" for client in clients},
    }


def spoken(data: Data) -> str:
    """How many points of how many classes, in words."""
    return f"{len(data['x'])} training samples of {len(set(data['class']))} classes by {data['method']}."
