"""The spread over clients: who is served well, and who is not."""

from __future__ import annotations

from statistics import fmean

from fedframe.metrics.accuracy import spread
from fedframe.report.page.runs import Group, Run, Subject
from fedframe.report.page.scores import NAMES
from fedframe.report.page.section import Data, Section, rounded
from fedframe.util.text import percent

TITLE = "Spread over clients"
READ = (
    "Every client's accuracy on its own test data, from the worst served to the best; a flat, high line means that "
    "nobody is left behind, which a mean alone does not tell."
)
OLDER = "This run has no scores by client (client_scores.json); runs of this version write them when they finish."
LATER = "Appears when the run is finished: every client is scored after the last round."


def section(subject: Subject) -> Section:
    """Sorted accuracies of the shared and the personal models."""
    panels: list[Data] = [
        {"key": kind, "label": NAMES[kind], "series": lines}
        for kind in ("client", "personal")
        if (lines := [line for group in subject.groups if (line := build(group, kind)) is not None])
    ]
    if not panels:
        finished = any(run.summary for run in subject.runs)
        return Section("spread", TITLE, READ, missing=OLDER if finished else LATER)
    if subject.single:  # shared and personal models side by side
        lines = [{**line, "label": panel["label"]} for panel in panels for line in panel["series"]]
        panels = [{"key": "both", "label": "both", "series": lines}]
    return Section("spread", TITLE, READ, {"panels": panels}, spoken(panels[0]))


def build(group: Group, kind: str) -> Data | None:
    """The clients of a method's first run, worst first."""
    run: Run = group.first
    scores = run.client_scores
    rows = [
        (float(accuracy), str(name), train, test)
        for name, accuracy, train, test in zip(
            scores.get("clients", []),
            scores.get(kind, []),
            scores.get("train_samples", []),
            scores.get("test_samples", []),
            strict=False,
        )
        if accuracy is not None
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: row[0])
    values = [row[0] for row in rows]
    found = spread(values) or {}
    return {
        "label": group.label,
        "values": [rounded(value, 4) for value in values],
        "clients": [row[1] for row in rows],
        "train": [row[2] for row in rows],
        "test": [row[3] for row in rows],
        "mean": rounded(fmean(values)),
        "worst": rounded(found.get("worst_tenth")),
        "std": rounded(found.get("std")),
    }


def spoken(panel: Data) -> str:
    """Mean, worst tenth and range in words."""
    return " ".join(
        f"{line['label']}: mean {percent(line['mean'])}, worst tenth {percent(line['worst'])}, from "
        f"{percent(line['values'][0])} to {percent(line['values'][-1])} over {len(line['values'])} clients."
        for line in panel["series"]
    )
