"""Whether the model knows when it is right: confidence against accuracy."""

from __future__ import annotations

from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, of_single_runs, rounded

TITLE = "Calibration"
READ = (
    "Predictions sorted by how sure the shared model was: a point on the diagonal is right exactly as often as it "
    "claims, one below it is overconfident. The expected calibration error is the mean distance to the diagonal, over "
    "all predictions."
)


def section(subject: Subject) -> Section:
    """The reliability diagram of each method's first run."""
    return of_single_runs(subject, Section("calibration", TITLE, READ, wide=False), build, spoken)


def build(run: Run) -> Data | None:
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


def spoken(data: Data) -> str:
    """The error in words."""
    return f"Expected calibration error {100 * data['error']:.1f} points."
