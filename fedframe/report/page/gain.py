"""What clients gain by joining: alone, shared and personal, client by client, from `gain.json`."""

from __future__ import annotations

from typing import Any

from fedframe.report.page.runs import Subject
from fedframe.report.page.section import Data, Section, rounded

TITLE = "What {who}s gain by joining"
READ = (
    "Each {who} on its own test data: with a model that it trained alone for as long, with the shared one, and with "
    "its own. A gain is clear where its 95 % interval leaves out 0."
)
MOST = 200  # rows


def section(subject: Subject) -> Section | None:
    """A row per client of the first run that was compared; no section where none was."""
    content: dict[str, Any] = next((run.gain for run in subject.runs if run.gain), {})
    if not content:
        return None
    rows = [
        {
            "client": str(row["client"]),
            "samples": row["test_samples"],
            **{kind: cell(row[kind]) for kind in ("alone", "shared", "personal", "gain")},
            "verdict": row["verdict"] or "",
        }
        for row in content["clients"]
    ]
    rows.sort(key=lambda row: -(row["gain"] or [-1])[0])
    counts = content.get("counts") or {}
    words = ", ".join(f"{word}: {count}" for word, count in counts.items())
    who = "site" if subject.groups[0].first.from_nodes else "client"
    data: Data = {"rows": rows[:MOST], "mean": cell(content.get("mean")), "counts": counts, "who": who}
    alt = f"{who.capitalize()}s by what joining gives them: {words or 'not known'}."
    return Section("gain", TITLE.format(who=who), READ.format(who=who), data, alt)


def cell(found: Any) -> list[float | None] | None:
    """Value, low and high."""
    return None if found is None else [rounded(found[key]) for key in ("value", "low", "high")]
