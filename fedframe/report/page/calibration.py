"""Whether the model knows when it is right: confidence against accuracy."""

from __future__ import annotations

from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, by_run, rounded, why_not_examined

TITLE = "Calibration"
READ = (
    "Predictions sorted by how sure the shared model was: a point on the diagonal is right exactly as often as it "
    "claims, one below it is overconfident. The expected calibration error is the mean distance to the diagonal."
)


def section(subject: Subject) -> Section:
    """The reliability diagram of each method's first run."""
    variants = by_run(subject, build)
    if not variants:
        return Section("calibration", TITLE, READ, missing=why_not_examined(subject), wide=False)
    error = variants[0]["data"]["error"]
    alt = f"Expected calibration error {100 * error:.1f} points."
    return Section("calibration", TITLE, READ, {"variants": variants}, alt, wide=False)


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
