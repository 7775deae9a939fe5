"""Methods against a baseline: differences seed by seed, as `fedframe compare` has computed them."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Any

from fedframe.core.measures import is_share
from fedframe.metrics.statistics import against_baseline, estimate
from fedframe.report.page.runs import COMPARISON, Group, Run, Subject
from fedframe.report.page.scores import SCORES, read
from fedframe.report.page.section import Data, Section, rounded
from fedframe.util.text import change, points

TITLE = "Against the baseline"
READ = (
    "Each method minus the baseline on the same seeds, hence the same split and the same initial weights: an interval "
    "that does not touch 0 would come about by luck alone in 1 of 20 comparisons at most."
)
UNPAIRED = (
    "Differences seed by seed need runs with the same seeds on the same clients, split and net: fedframe compare "
    "{methods} --seeds 3, then fedframe report on its folder."
)
ONE_CASE = "Differences seed by seed are those of a case: fedframe report {folder}"
# From these settings a seed makes clients, split and initial weights: runs that differ in them are not paired.
PROBLEM = (
    "data", "partition", "clients", "min_client_size", "test_share", "validate_share", "data_share", "local_test",
    "new_clients", "model",
)  # fmt: skip


def section(subject: Subject) -> Section | None:
    """The paired table; None for a single method."""
    if subject.single:
        return None
    comparison = subject.comparison or compare_runs(subject)
    scores = tables(comparison)
    if not scores:
        case = next((path for path in subject.groups[0].first.path.parents if (path / COMPARISON).exists()), None)
        if subject.groups[0].case and case is not None:
            return Section("paired", TITLE, READ, missing=ONE_CASE.format(folder=shlex.quote(case.as_posix())))
        methods = " ".join(dict.fromkeys(str(group.first.config.get("method")) for group in subject.groups))
        return Section("paired", TITLE, READ, missing=UNPAIRED.format(methods=methods))
    baseline = str(comparison["baseline"])
    share = is_share(subject.groups[0].first.metric)
    data = {"baseline": baseline, "scores": scores, "note": note(scores), "share": share}
    return Section("paired", TITLE, READ, data, alt_text(data))


def compare_runs(subject: Subject) -> Data:
    """The same for single runs, if all methods had the same seeds and problem; the first is the baseline."""
    if len({problem(group.first) for group in subject.groups}) > 1:
        return {}
    seeds = [[run.seed for run in group.runs] for group in subject.groups]
    if any(sorted(each) != sorted(seeds[0]) or len(set(each)) < len(each) for each in seeds):
        return {}
    methods: list[Data] = [{"name": group.label, "scores": {}, "difference": {}} for group in subject.groups]
    for score in SCORES:
        values = [[read(run, score, "final") for run in by_seed(group)] for group in subject.groups]
        for method, each in zip(methods, values, strict=True):
            method["scores"][f"{score}.final"] = asdict(estimate(each))
        for method, found in zip(methods[1:], against_baseline(values[1:], values[0]), strict=True):
            method["difference"][f"{score}.final"] = asdict(found)
    return {"baseline": subject.groups[0].label, "methods": methods}


def problem(run: Run) -> str:
    """What two runs must have in common, so that the same seed means the same clients, split and initial weights."""
    return json.dumps([run.config.get(name) for name in PROBLEM], default=str)


def by_seed(group: Group) -> list[Run]:
    """Runs in the order of their seeds."""
    return sorted(group.runs, key=lambda run: run.seed)


def tables(comparison: Data) -> list[Data]:
    """A table per accuracy that the comparison has."""
    methods = comparison.get("methods", [])
    names = list(dict.fromkeys(name for method in methods for name in method.get("difference") or {}))
    found = []
    for name in names:
        rows = [row(i, method, name) for i, method in enumerate(methods)]
        if any(each["mean"] is not None for each in rows):
            found.append({"score": name, "label": name.replace(".", ", ").replace("_", " "), "rows": rows})
    return found


def row(index: int, method: dict[str, Any], score: str) -> Data:
    """A method's mean and its difference to the baseline."""
    figure = method.get("scores", {}).get(score) or {}
    difference = (method.get("difference") or {}).get(score)
    shown = {key: rounded(figure.get(key)) for key in ("mean", "low", "high")}
    if difference:
        difference = {key: rounded(value) if isinstance(value, float) else value for key, value in difference.items()}
    return {"label": str(method.get("label") or method["name"]), "index": index, **shown, "difference": difference}


def note(scores: list[Data]) -> str:
    """Which test the p-values come from."""
    found = [
        each["difference"]["test"] for one in scores for each in one["rows"] if (each["difference"] or {}).get("test")
    ]
    tested = f"p: {found[0]}. " if found else ""
    return f"{tested}p (Holm) allows for several methods being compared; colour marks one below 0.05."


def alt_text(data: Data) -> str:
    """The first score's differences in words."""
    first = data["scores"][0]
    texts = [
        f"{each['label']} {change(each['difference']['mean'], data['share'])}{points(data['share'])}"
        for each in first["rows"]
        if each["difference"] and each["difference"].get("mean") is not None
    ]
    return f"{first['label']}, difference to {data['baseline']}: {', '.join(texts) or 'none'}."
