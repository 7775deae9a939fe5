"""The geometry of classifier and features: angles between class vectors, and neural collapse over rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedframe.analysis.explanations import READINGS
from fedframe.report.page.curves import Line, panel, series
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import STAYS_AT_NODES, Data, Section, cut_note, of_single_runs, rounded, shown_classes

GRAM = Section(
    "gram",
    "The classifier's geometry",
    "Cosines between the classifier's class vectors. Ideally all pairs of C classes are equally far apart, at "
    "-1/(C-1); pairs above that are classes which the classifier holds to be alike.",
    wide=False,
)


def gram_section(subject: Subject) -> Section:
    """The Gram matrix of each method's first run."""
    return of_single_runs(subject, GRAM, gram_data, gram_text)


def gram_data(run: Run) -> Data | None:
    """Cosines, lengths and the ideal."""
    found = run.examination.get("gram")
    if not found or not found.get("cosines") or found["ideal"] is None:  # a single class has no angles
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


def gram_text(data: Data) -> str:
    """How far the pairs are from the ideal, in words."""
    return (
        f"Cosines between classes are {data['mean']} on average, ideal is {data['ideal']}; root mean square distance "
        f"from the ideal {data['distance']}."
    )


COLLAPSE = Section(
    "collapse",
    "Neural collapse",
    "In a well-trained net the features of a class shrink to a point (NC1), the class means spread evenly (NC2), the "
    "classifier lines up with them (NC3) and the nearest mean decides (NC4); nearer to 0 is nearer to that ideal.",
)
COLLAPSE_NAMES = {
    "nc1": "NC1: spread within classes",
    "nc2_norms": "NC2: lengths of class means",
    "nc2_angles": "NC2: angles of class means",
    "nc2_classifier_norms": "NC2: lengths in the classifier",
    "nc2_classifier_angles": "NC2: angles in the classifier",
    "nc3": "NC3: classifier against means",
    "nc4": "NC4: nearest mean disagrees",
}
COLLAPSE_MEASURES = {key: (name, READINGS[key]) for key, name in COLLAPSE_NAMES.items()}
ROUNDING = 1e-6  # below it a measure is 0 but for the arithmetic of floats: a fixed ETF classifier has some 1e-9
COLLAPSE_OFF = "Not measured between rounds; run with --measure collapse to see it."


def without_rounding(value: float | None) -> float | None:
    """A measure, or 0 where it is nothing but a rounding error."""
    return 0.0 if isinstance(value, int | float) and abs(value) < ROUNDING else value


def collapse_reader(name: str) -> Callable[[Line], float | None]:
    """A function that reads a measure of a round."""
    return lambda line: without_rounding(line.get(name))


def collapse_section(subject: Subject) -> Section:
    """A small panel per measure, and the final values."""
    panels = []
    for key, (label, read) in COLLAPSE_MEASURES.items():
        drawn = panel(key, label, [series(g.label, g.runs, collapse_reader(key)) for g in subject.groups], read=read)
        if drawn is not None:
            panels.append(drawn)
    final: list[Data] = [
        {
            "label": group.label,
            "values": {key: rounded(without_rounding(found.get(key)), 4) for key in COLLAPSE_MEASURES if key in found},
        }
        for group in subject.groups
        if (found := group.first.examination.get("collapse"))
    ]
    names = {key: list(words) for key, words in COLLAPSE_MEASURES.items()}
    if not panels and not final:
        return replace(
            COLLAPSE, missing=STAYS_AT_NODES if all(run.from_nodes for run in subject.runs) else COLLAPSE_OFF
        )
    data = {"panels": panels, "final": final, "names": names, "note": "" if panels else COLLAPSE_OFF}
    alt = " ".join(
        f"{one['label']}: "
        + ", ".join(f"{COLLAPSE_MEASURES[key][0]} {value}" for key, value in one["values"].items())
        + "."
        for one in final
    )
    return replace(COLLAPSE, data=data, alt=alt)
