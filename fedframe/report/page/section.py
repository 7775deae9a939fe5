"""A section of the page: a figure's title, how to read it, its data, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedframe.report.page.runs import Run, Subject

Data = dict[str, Any]
STAYS_AT_NODES = (
    "Data and own models stay at the nodes; what can be shown here is what the shared model makes of the organiser's "
    "own test data (fedframe federation start --test-data)."
)


@dataclass(frozen=True)
class Section:
    """One figure of the page, as plain values that its script draws."""

    id: str
    title: str
    read: str  # one sentence on how to read it, for those who see it first
    data: Data = field(default_factory=dict)
    alt: str = ""  # what the figure shows, in words, for those who cannot see it
    missing: str = ""  # why there is nothing to draw, and what would help
    wide: bool = True  # takes the whole width of a wide page

    def plain(self) -> Data:
        """The section as a dictionary for JSON, without empty entries."""
        return {key: value for key, value in asdict(self).items() if value not in ("", {})}


def by_run(subject: Subject, build: Callable[[Run], Data | None]) -> list[Data]:
    """The details of one run of each method that has any; equal ones are merged."""
    variants: list[Data] = []
    for group in subject.groups:
        data = build(group.first)
        if data is None:
            continue
        name = group.label if len(group.runs) == 1 else f"{group.label}, seed {group.first.seed}"
        same = next((each for each in variants if each["data"] == data), None)
        if same is not None:
            same["name"] += f"; {name}"
        else:
            variants.append({"name": name, "data": data})
    return variants


def of_single_runs(
    subject: Subject,
    section: Section,
    build: Callable[[Run], Data | None],
    alt_text: Callable[[Data], str],
    missing: str = "",
) -> Section:
    """A section on the models of one run of each method, its text on the first; `missing` if there are none."""
    variants = by_run(subject, build)
    if not variants:
        return replace(section, missing=missing or why_not_examined(subject))
    return replace(section, data={"variants": variants}, alt=alt_text(variants[0]["data"]))


def why_not_examined(subject: Subject) -> str:
    """Why there is nothing that needs an examination of the saved models, as a sentence."""
    first = subject.groups[0].first
    if first.examination_error:
        return first.examination_error
    if not first.summary:
        return "Appears when the run is finished: it needs the saved models."
    if first.examination and first.from_nodes:
        return STAYS_AT_NODES
    return "Needs a look at the saved models; make the page with: fedframe report " + first.path.as_posix()


def if_examined(subject: Subject, missing: str) -> str:
    """The sentence `missing` if the saved models have been examined, else why they have not."""
    seen = any(group.first.examination for group in subject.groups)
    return missing if seen and not subject.groups[0].first.from_nodes else why_not_examined(subject)


def rounded(value: float | None, digits: int = 5) -> float | None:
    """A number in a few digits; None if it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def finite(values: Any) -> Any:
    """The same values, with None for NaN and infinities, which JSON does not have."""
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, dict):
        return {str(key): finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return values


def shown_classes(examination: dict[str, Any], width: int) -> list[str]:
    """The names of the classes of a matrix; one of more than 100 classes shows the most frequent ones."""
    classes = [str(name) for name in examination.get("classes") or []]
    if len(classes) == width:
        return classes
    shown = examination.get("shown_classes")
    if isinstance(shown, list) and len(shown) == width:
        known = all(isinstance(each, int) and 0 <= each < len(classes) for each in shown)
        return [classes[each] for each in shown] if known else [str(each) for each in shown]
    return [str(number) for number in range(width)]


def cut_note(examination: dict[str, Any], width: int) -> str:
    """A sentence for a matrix that does not show all classes."""
    total = len(examination.get("classes") or [])
    return f"The {width} most frequent of {total} classes are shown." if total > width else ""
