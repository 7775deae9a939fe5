"""How alike the clients' own models see: similarity layer by layer, and of their prototypes."""

from __future__ import annotations

from fedframe.analysis.explanations import READINGS
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, if_examined, of_single_runs, rounded

TITLE = "Agreement between clients' nets"
READ = READINGS["cka"]
NONE = "Needs the personal models of two clients or more; none were saved in this run."


def section(subject: Subject) -> Section:
    """Linear CKA by layer, and how alike the clients' class means are."""
    return of_single_runs(subject, Section("alike", TITLE, READ, wide=False), build, spoken, if_examined(subject, NONE))


def build(run: Run) -> Data | None:
    """Layers from the input to the output."""
    found = run.examination.get("cka")
    if not found or not found.get("layers"):
        return None
    prototypes = run.examination.get("prototypes") or {}
    known = {
        name: (value or {}).get("mean") if isinstance(value, dict) else value for name, value in prototypes.items()
    }
    return {
        "layers": [str(name) for name in found["layers"]],
        "similarity": [rounded(value, 4) for value in found["similarity"]],
        "clients": len(found.get("clients") or []),
        "prototypes": {name: rounded(value, 4) for name, value in known.items() if isinstance(value, float)},
        "prototypes_read": READINGS["prototypes"],
    }


def spoken(data: Data) -> str:
    """Layer by layer, in words."""
    return ", ".join(f"{name}: {value}" for name, value in zip(data["layers"], data["similarity"], strict=True))
