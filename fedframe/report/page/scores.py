"""The three scores with their definitions: mean and interval over seeds."""

from __future__ import annotations

from typing import Any

from fedframe.core.evaluation import DEFINITIONS, EASIER_TASK, spoken_definitions
from fedframe.core.measures import METRICS, NUMBER_METRICS, is_share
from fedframe.metrics.statistics import estimate
from fedframe.report.page.runs import Group, Run, Subject
from fedframe.report.page.section import Data, Section, rounded
from fedframe.util.text import figure, sentence

SCORES = ("generic", "client", "personal")
NAMES = {
    "generic": "Shared model, global test",
    "client": "Shared model, clients' own tests",
    "personal": "Personal models, own tests",
    "new": "New clients' own models",
}
FIRST_SEED = " Of several seeds it is the first one's."
KINDS = {
    "final": "saved models",
    "last_five": "mean of last 5 evaluations",
    "weighted": "saved models, weighted by test samples",
    "client": "shared model on the same clients",  # of new clients only
}
SO_FAR = {"final": 1, "last_five": 5}  # evaluations that the score of an unfinished run is the mean of
READ = "Each number answers another question; all are"
ACCURACIES = "accuracies, the share of test samples that are classified correctly"


def names(run: Run) -> dict[str, str]:
    """What scores are called: among organisations clients are sites, and at a node there is only its own."""
    if run.node:
        own = {"client": f"Shared model, {run.node}'s own tests", "personal": f"{run.node}'s own model, own tests"}
        return {**NAMES, **{score: f"{text[:1].upper()}{text[1:]}" for score, text in own.items()}}
    return {score: text.replace("clients'", "sites'") if run.from_nodes else text for score, text in NAMES.items()}


def first_seed(subject: Subject) -> str:
    """Said where a section shows one run of each method, and there are several."""
    return FIRST_SEED if any(len(group.runs) > 1 for group in subject.groups) else ""


def section(subject: Subject) -> Section:
    """Tiles of one method, or a row per method."""
    entries: list[Data] = [{"label": group.label, "scores": group_scores(group)} for group in subject.groups]
    words = definitions(subject)
    called = names(subject.groups[0].first)
    data = {"groups": entries, "names": called, "kinds": KINDS, "definitions": words, "seeds": seed_count(subject)}
    alt = "; ".join(f"{e['label']}: " + ", ".join(headline(e["scores"], is_share(metric(subject)))) for e in entries)
    if not any(entry["scores"] for entry in entries):
        return Section("scores", "Scores", read_text(subject, entries), missing="No round has been evaluated yet.")
    return Section("scores", "Scores", read_text(subject, entries), data, alt)


def metric(subject: Subject) -> str:
    """What the scores of all runs are; of several metrics the first run's."""
    return subject.groups[0].first.metric


def read_text(subject: Subject, entries: list[Data]) -> str:
    """What the scores are, and what must be known to compare them."""
    metrics = dict.fromkeys(run.metric for run in subject.runs)
    what = "; ".join(
        ACCURACIES if one == "accuracy" else {**METRICS, **NUMBER_METRICS}.get(one, one) for one in metrics
    )
    differ = " Runs have different metrics: compare only those with the same one." if len(metrics) > 1 else ""
    both = any({"generic", "personal"} <= {*entry["scores"]} for entry in entries)
    return (
        f"{READ} {what}.{differ}{' ' + sentence(EASIER_TASK) if both and subject.groups[0].first.knows_classes else ''}"
    )


def group_scores(group: Group) -> Data:
    """Each score of a method by kind: its values over the seeds, mean and interval."""
    found: Data = {}
    for score in (*SCORES, "new"):
        for kind in KINDS:
            values = [value for run in group.runs if (value := read(run, score, kind)) is not None]
            if values:
                mean, low, high = map(rounded, estimate(values).interval)
                entry = {"values": values, "mean": mean, "low": low, "high": high}
                if kind == "final" and len(group.runs) == 1:
                    entry |= by_samples(group.first, score)
                found.setdefault(score, {})[kind] = entry
    return found


def by_samples(run: Run, score: str) -> Data:
    """The number of test samples that a score is made of, and the interval that follows from it."""
    found = run.summary.get("scores", {}).get(score) or {}
    if found.get("low") is None:
        return {}
    return {"low": rounded(found["low"]), "high": rounded(found["high"]), "samples": found.get("samples")}


def read(run: Run, score: str, kind: str) -> float | None:
    """A score of a run; of an unfinished one, that of the last evaluated rounds."""
    if run.summary:
        entry: Any = run.summary.get("scores", {}).get(score) or {}
        return rounded(entry.get(kind), 6)
    values = [line[score] for line in run.metrics if line.get(score) is not None]
    if kind not in SO_FAR or not values:
        return None
    shown = values[-SO_FAR[kind] :]
    return rounded(sum(shown) / len(shown), 6)


def definitions(subject: Subject) -> dict[str, str]:
    """The definitions of the scores, from the first finished run."""
    said: dict[str, str] = next(
        (spoken_definitions(run.summary) for run in subject.runs if run.summary.get("definitions")), {}
    )
    return {**DEFINITIONS, **said}


def seed_count(subject: Subject) -> int:
    """The most seeds that a method has been run with."""
    return max(len(group.runs) for group in subject.groups)


def headline(scores: Data, share: bool) -> list[str]:
    """The final scores in words."""
    return [f"{score} {figure(kinds['final']['mean'], share)}" for score, kinds in scores.items() if "final" in kinds]
