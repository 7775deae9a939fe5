"""The cost of the runs: time, memory, bytes and operations."""

from __future__ import annotations

from typing import Any

from fedframe.metrics.statistics import estimate
from fedframe.report.page.runs import Group, Run, Subject
from fedframe.report.page.scores import read as read_score
from fedframe.report.page.section import Data, Section, rounded

TITLE = "Cost"
READ = (
    "What the scores were bought with: bytes are what all clients together sent and received, in all rounds and in the "
    "stages after the last one (of it: what these stages took), and CPU time adds up all cores."
)
MEASURES = {
    "seconds": ("time", "s"),
    "cpu_seconds": ("CPU time", "s"),
    "bytes_up": ("sent by clients", "bytes"),
    "bytes_down": ("sent to clients", "bytes"),
    "bytes_after": ("after the last round", "bytes"),
    "peak_memory_mb": ("peak memory", "MB"),
    "parameters": ("parameters", ""),
    "flops_per_sample": ("a prediction", "FLOPs"),
    "training_flops_per_sample": ("a training sample", "FLOPs"),
}


def section(subject: Subject) -> Section:
    """A row per method, and bytes by what they carry."""
    rows = [build(group) for group in subject.groups]
    if not any(row["values"] for row in rows):
        return Section("cost", TITLE, READ, missing="Appears after the first finished round.")
    data = {"rows": rows, "measures": {key: list(words) for key, words in MEASURES.items()}}
    return Section("cost", TITLE, READ, data, "The numbers are in the table.")


def build(group: Group) -> Data:
    """A method's costs, means over seeds, and its scores beside them."""
    values = {}
    for key in MEASURES:
        known = [value for run in group.runs if (value := read(run, key)) is not None]
        if known:
            values[key] = [rounded(number) for number in estimate(known).interval]
    scores: dict[str, float | None] = {}
    for score in ("generic", "client", "personal"):
        found = [value for run in group.runs if (value := read_score(run, score, "final")) is not None]
        scores[score] = rounded(estimate(found).mean)
    return {"label": group.label, "values": values, "scores": scores, "parts": parts(group.first)}


def read(run: Run, key: str) -> float | None:
    """A cost from the summary, the examination or, while the run is not finished, its rounds so far."""
    cost = run.examination.get("cost") or {}
    if key == "bytes_after":
        return sum(sum(stage_bytes(stage)) for stage in stages(run)) if "stages" in run.summary else None
    found: Any = run.summary.get(f"{key}_total", run.summary.get(key, cost.get(key)))
    if found is None and not run.summary and run.metrics and key in ("seconds", "bytes_up", "bytes_down"):
        found = sum(float(line.get(key) or 0) for line in run.metrics)
    return float(found) if isinstance(found, int | float) else None


def parts(run: Run) -> list[list[Any]]:
    """Bytes by part and direction, of rounds and stages together: [part, up, down]."""
    rows: dict[str, list[Any]] = {}
    counted = [(run.examination.get("cost") or {}).get("by_part") or {}]
    if counted[0]:  # shown with the examination, as before
        counted += [stage.get("bytes_by_part") or {} for stage in stages(run)]
    for found in counted:
        for name, entry in found.items():
            if isinstance(entry, dict):
                row = rows.setdefault(str(name), [str(name), 0, 0])
                row[1] += int(entry.get("up") or 0)
                row[2] += int(entry.get("down") or 0)
    return list(rows.values())


def stages(run: Run) -> list[dict[str, Any]]:
    """What the stages after the last round cost; none for runs of earlier versions."""
    return [stage for stage in (run.summary.get("stages") or {}).values() if isinstance(stage, dict)]


def stage_bytes(stage: dict[str, Any]) -> tuple[float, float]:
    """Bytes up and down of a stage."""
    return float(stage.get("bytes_up") or 0), float(stage.get("bytes_down") or 0)
