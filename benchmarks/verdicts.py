"""Verdicts on papers' claims from the scenes of the bench: shown, not shown, or shown but explained by a control.

Reads docs/results/claims.yaml and docs/results/bench/SCENE.json. A claim says that one row beats another. In a case
it is

- shown: the difference over seeds has a 95 % interval above 0, and so has that to every control that could explain
  it;
- shown but explained by a control: a control is level with the row or ahead of it;
- shown, but a control is too near: the row is ahead of it, by less than chance could do;
- not shown: the interval holds 0 (or lies below it, which is said).

The p-values beside them are adjusted by Holm for all claims and cases of a scene; a difference whose interval misses 0
and whose adjusted p is .05 or more is marked as one that several tests may have produced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedframe.experiments.bench.scene import load_scene
from fedframe.experiments.compare.tables import p_text
from fedframe.experiments.grid.scores import heading
from fedframe.experiments.tables import DASH
from fedframe.metrics.statistics import Difference, holm, paired

Json = Mapping[str, Any]
ROOT = Path(__file__).parent.parent / "docs" / "results"
BASELINE = "fedavg"
CONTROLS = ("fedavg, rate cut", "fedavg+average", "fedavg+ffc", "fedavg+balanced_ce", "untrained + ffc")
OF_PERSONAL = ("personal.final", "new.final")  # there every client alone is a control, too
SHOWN, EXPLAINED, NEAR, NOT_SHOWN = (
    "shown",
    "shown but explained by a control",
    "shown, but a control is too near to tell",
    "not shown",
)


BELOW = "the interval lies below 0"
MANY = "several tests: it may be chance"
LEVEL = 0.05


@dataclass(frozen=True)
class Claim:
    """That a row beats another one in a score."""

    claim: str
    row: str
    over: str = BASELINE
    score: str = "generic.final"
    controls: tuple[str, ...] | None = None

    @property
    def rivals(self) -> tuple[str, ...]:
        """The controls that could explain the gain."""
        if self.controls is not None:
            return self.controls
        if self.over != BASELINE:
            return ()
        return (*CONTROLS, "local") if self.score in OF_PERSONAL else CONTROLS


@dataclass(frozen=True)
class Verdict:
    """What a case of a scene says about a claim."""

    word: str
    difference: Difference
    control: str = ""  # the one that is nearest, where it spoils the claim
    ahead: Difference | None = None  # of the row, to that control
    remark: str = ""


def read_claims() -> dict[str, dict[str, Any]]:
    """The claims of every scene, with what the scene leaves out."""
    content = yaml.safe_load((ROOT / "claims.yaml").read_text())
    return {scene: {**each, "claims": [Claim(**claim) for claim in each["claims"]]} for scene, each in content.items()}


def judge(claim: Claim, values: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Verdict:
    """The verdict of a case; `values` are the scores of its rows, seed by seed."""
    for label in (claim.row, claim.over):
        if not any(value is not None for value in values.get(label, {}).get(claim.score, ())):
            return Verdict(NOT_SHOWN, Difference(0), remark=f"{label} has no such score")
    ours = values[claim.row][claim.score]
    gain = paired(ours, values[claim.over][claim.score])
    if gain.low is None or gain.low <= 0:
        below = gain.high is not None and gain.high < 0
        return Verdict(NOT_SHOWN, gain, remark=BELOW if below else "")
    found = {
        name: paired(ours, values[name][claim.score])
        for name in claim.rivals
        if name in values and any(value is not None for value in values[name].get(claim.score, ()))
    }
    near = {name: each for name, each in found.items() if each.low is None or each.low <= 0}
    if not near:
        return Verdict(SHOWN, gain)
    name = min(near, key=lambda name: near[name].mean or 0.0)
    level = (near[name].mean or 0.0) <= 0
    return Verdict(EXPLAINED if level else NEAR, gain, name, near[name])


def case_values(result: Json) -> dict[str, dict[str, Sequence[float | None]]]:
    """The scores of a case by row, seed by seed."""
    return {
        method["label"]: {name: score["values"] for name, score in method["scores"].items()}
        for method in result["methods"]
    }


def read_records() -> dict[str, Json]:
    """The results of the scenes that have been run, by scene."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "bench").glob("*.json"))}


def section(scene: str, about: Mapping[str, Any], record: Json | None) -> list[str]:
    """What stands under a scene's heading, as lines of Markdown."""
    subset = [f"A subset: {' '.join(about['subset'].split())}", ""] if "subset" in about else []
    if record is None:
        command = f"fedframe bench {scene} --data-dir data/ --out docs/results/bench"
        return [f"Claims of {about['paper']}.", "", *subset, f"**Not run yet**: `{command}`."]
    seeds = len(next(iter(record["results"].values()))["seeds"])
    lines = [
        f"Claims of {about['paper']}. Figures: [{scene}.md](bench/{scene}.md), [{scene}.json](bench/{scene}.json), "
        f"made by `{record['command']}`; {seeds} seeds, {record['cpu_hours']:.1f} CPU hours.",
        "",
        *subset,
    ]
    missing = [case for case in load_scene(scene).case_names if case not in record["results"]]
    if missing:
        lines += [f"Not run yet: {', '.join(missing)}.", ""]
    return [*lines, *table(about["claims"], record), "", *control_table(record)]


def table(claims: Sequence[Claim], record: Json) -> Iterator[str]:
    """A line per claim and case."""
    cases = record["results"]
    verdicts = [(claim, case, judge(claim, case_values(result))) for claim in claims for case, result in cases.items()]
    adjusted = holm([verdict.difference.p for _, _, verdict in verdicts])
    yield f"| claim |{' case |' if len(cases) > 1 else ''} score | difference | p, Holm | verdict |"
    yield f"|---|{'---|' if len(cases) > 1 else ''}---|---|---|---|"
    for (claim, case, verdict), p in zip(verdicts, adjusted, strict=True):
        place = f" {case} |" if len(cases) > 1 else ""
        what = f"{claim.claim} (`{claim.row}` over `{claim.over}`)"
        difference = points(verdict.difference)
        yield f"| {what} |{place} {heading(claim.score)} | {difference} | {p_text(p)} | {sentence(verdict, p)} |"


def control_table(record: Json) -> Iterator[str]:
    """What the controls bring by themselves: difference to the baseline in the shared and the personal models."""
    cases = record["results"]
    yield f"| control |{' case |' if len(cases) > 1 else ''} generic, to FedAvg | personal, to FedAvg |"
    yield f"|---|{'---|' if len(cases) > 1 else ''}---|---|"
    for label in (row["label"] for row in record["rows"] if row["control"] and row["label"] != BASELINE):
        for case, result in cases.items():
            values = case_values(result)
            if label in values:
                both = (gain(values, label, score) for score in ("generic.final", "personal.final"))
                yield f"| `{label}` |{f' {case} |' if len(cases) > 1 else ''} {' | '.join(both)} |"


def gain(values: Mapping[str, Mapping[str, Sequence[float | None]]], label: str, score: str) -> str:
    """A row's difference to the baseline in a score, if both have it."""
    if score not in values[label] or score not in values[BASELINE]:
        return DASH
    return points(paired(values[label][score], values[BASELINE][score]))


def sentence(verdict: Verdict, p: float | None) -> str:
    """The verdict in words, with the control that spoils it."""
    text = f"**{verdict.word}**"
    if verdict.ahead is not None:
        text += f": to `{verdict.control}` the difference is {points(verdict.ahead)}"
    beyond = verdict.word != NOT_SHOWN or verdict.remark == BELOW
    remarks = [verdict.remark, MANY if beyond and (p is None or p >= LEVEL) else ""]
    return text + (f" ({'; '.join(filter(None, remarks))})" if any(remarks) else "")


def points(difference: Difference) -> str:
    """A difference of accuracies in percentage points, with its interval."""
    if difference.mean is None:
        return DASH
    if difference.low is None or difference.high is None:
        return f"{100 * difference.mean:+.2f}"
    return f"{100 * difference.mean:+.2f} [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]"
