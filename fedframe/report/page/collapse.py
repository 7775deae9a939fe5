"""Neural collapse over rounds: how near features and classifier come to the ideal geometry."""

from __future__ import annotations

from collections.abc import Callable

from fedframe.analysis.explanations import READINGS
from fedframe.report.page.lines import Line, panel, series
from fedframe.report.page.runs import Subject
from fedframe.report.page.section import STAY, Section, rounded

TITLE = "Neural collapse"
READ = (
    "In a well-trained net the features of a class shrink to a point (NC1), the class means spread evenly (NC2), the "
    "classifier lines up with them (NC3) and the nearest mean decides (NC4); nearer to 0 is nearer to that ideal."
)
NAMES = {
    "nc1": "NC1: spread within classes",
    "nc2_norms": "NC2: lengths of class means",
    "nc2_angles": "NC2: angles of class means",
    "nc2_classifier_norms": "NC2: lengths in the classifier",
    "nc2_classifier_angles": "NC2: angles in the classifier",
    "nc3": "NC3: classifier against means",
    "nc4": "NC4: nearest mean disagrees",
}
MEASURES = {key: (name, READINGS[key]) for key, name in NAMES.items()}
ROUNDING = 1e-6  # below it a measure is 0 but for the arithmetic of floats: a fixed ETF classifier has some 1e-9
OFF = "Not measured between rounds; run with --measure collapse to see it."


def settled(value: float | None) -> float | None:
    """A measure without what is rounding alone."""
    return 0.0 if isinstance(value, int | float) and abs(value) < ROUNDING else value


def reader(name: str) -> Callable[[Line], float | None]:
    """A function that reads a measure of a round's line."""
    return lambda line: settled(line.get(name))


def section(subject: Subject) -> Section:
    """A small picture per measure, and the final values."""
    panels = []
    for key, (label, read) in MEASURES.items():
        drawn = panel(key, label, [series(g.label, g.runs, reader(key)) for g in subject.groups], read=read)
        if drawn is not None:
            panels.append(drawn)
    final = [
        {"label": group.label, "values": {key: rounded(settled(found.get(key)), 4) for key in MEASURES if key in found}}
        for group in subject.groups
        if (found := group.first.examination.get("collapse"))
    ]
    names = {key: list(words) for key, words in MEASURES.items()}
    if not panels and not final:
        return Section("collapse", TITLE, READ, missing=STAY if all(run.from_nodes for run in subject.runs) else OFF)
    data = {"panels": panels, "final": final, "names": names, "note": "" if panels else OFF}
    alt = " ".join(
        f"{one['label']}: " + ", ".join(f"{MEASURES[key][0]} {value}" for key, value in one["values"].items()) + "."  # type: ignore[attr-defined]
        for one in final
    )
    return Section("collapse", TITLE, READ, data, alt)
