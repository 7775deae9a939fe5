"""The classifier's angles against the ideal: cosines between class vectors, and where a simplex would have them."""

from __future__ import annotations

from fedframe.report.page.names import cut_note, shown_classes
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, of_single_runs, rounded

TITLE = "The classifier's geometry"
READ = (
    "Cosines between the classifier's class vectors. Ideally all pairs of C classes are equally far apart, at "
    "-1/(C-1); pairs above that are classes which the classifier holds to be alike."
)


def section(subject: Subject) -> Section:
    """The Gram matrix of each method's first run."""
    return of_single_runs(subject, Section("gram", TITLE, READ, wide=False), build, spoken)


def build(run: Run) -> Data | None:
    """Cosines, lengths and the ideal."""
    found = run.examination.get("gram")
    if not found or not found.get("cosines") or found["ideal"] is None:  # one class has nobody to be far from
        return None
    cosines = [[rounded(value, 4) for value in row] for row in found["cosines"]]
    off = [value for i, row in enumerate(cosines) for j, value in enumerate(row) if i != j and value is not None]
    ideal = float(found["ideal"])
    return {
        "classes": shown_classes(run.examination, len(cosines)),
        "cosines": cosines,
        "ideal": rounded(ideal),
        "norms": [rounded(value, 4) for value in found.get("norms") or []],
        "mean": rounded(sum(off) / len(off) if off else None, 4),
        "distance": rounded((sum((value - ideal) ** 2 for value in off) / len(off)) ** 0.5 if off else None, 4),
        "note": cut_note(run.examination, len(cosines)),
    }


def spoken(data: Data) -> str:
    """How far the pairs are from the ideal, in words."""
    return (
        f"Cosines between classes are {data['mean']} on average, ideal is {data['ideal']}; root mean square distance "
        f"from the ideal {data['distance']}."
    )
