"""What a board asks first, on one screen: the verdict, the scores, who gains, what is mistaken, what left the sites."""

from __future__ import annotations

from typing import Any

from fedframe.core.evaluation import EASIER_TASK
from fedframe.core.measures import is_share, metric_name, sign_of
from fedframe.report.page import paired
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.scores import names
from fedframe.report.page.section import Data, Section, rounded
from fedframe.runs.gain import verdict as gain_verdict
from fedframe.util.text import change, figure, interval, percent, plural, points, sentence

TITLE = "Essentials"
READ = "The result in a few sentences; every number comes with its 95 % interval. Everything else is below."
SCORES = ("generic", "client", "personal")
MOST_CLASSES = 8  # of a matrix that can be read at a glance
BEST = 4  # methods that a verdict names one by one
WORDS = {
    "generic": "the shared model on the common test data",
    "client": "the shared model on the {sites}' own test data",
    "personal": "the {sites}' own models on their own test data",
}
ONE = {"client": "the shared model on {name}'s own test data", "personal": "{name}'s own model on its own test data"}


def section(subject: Subject) -> Section | None:
    """The essentials of finished runs; while nothing is finished, curves say more."""
    if not any(run.summary for run in subject.runs):
        return None
    run = subject.groups[0].first
    sentences = verdict(run) if subject.single else comparison(subject)
    rows = score_rows(run) if subject.single else []
    data: Data = {
        "verdict": sentences,
        "scores": rows,
        "easier": sentence(EASIER_TASK)
        if run.knows_classes and {"generic", "personal"} <= {row["score"] for row in rows}
        else "",
        "gain": gain_verdict(run.gain, sites(run)[:-1]) if run.gain else "",
        "confusion": confusion(run) if subject.single else None,
        "left": left(subject),
    }
    return Section("essentials", TITLE, READ, data, " ".join([*sentences, data["gain"], data["left"]]).strip())


def sites(run: Run) -> str:
    """What a run's clients are called by people."""
    return "sites" if run.from_nodes else "clients"


def words(run: Run, score: str) -> str:
    """What a score is of."""
    return (ONE if run.node else WORDS)[score].format(sites=sites(run), name=run.node)


def begun(text: str) -> str:
    """Words at the beginning of a sentence; names in them stay as they are."""
    return f"{text[:1].upper()}{text[1:]}"


# -- one method --------------------------------------------------------------------------------------------------------
def verdict(run: Run) -> list[str]:
    """How good the model is, and what the majority class alone would give."""
    found = {score: entry for score, entry in scores(run).items() if not (run.node and score == "generic")}
    if not found:
        return ["The run is finished; there were no test data to score it on."]
    first = next(iter(found))
    said = [f"{begun(words(run, first))}: {score_text(run, found[first])}."]
    if {"client", "personal"} <= {*found} and first != "personal":
        both = [figure(found[score]["final"], is_share(run.metric)) for score in ("personal", "client")]
        reach = "reaches" if run.node else "reach"
        said.append(f"{begun(words(run, 'personal'))} {reach} {both[0]}, the shared one reaches {both[1]} there.")
    table = (run.summary.get("measures") or {}).get(first)
    if table and run.metric == "accuracy":
        most = table["majority"]
        said.append(f"Always saying {most['class']!r} would be right in {percent(most['share'])}.")
    return said


def scores(run: Run) -> dict[str, Data]:
    """The final scores that a run has."""
    found: dict[str, Any] = run.summary.get("scores", {})
    return {score: found[score] for score in SCORES if (found.get(score) or {}).get("final") is not None}


def score_text(run: Run, entry: Data) -> str:
    """A score in words: right in so many of so many."""
    what = "right in " if run.metric == "accuracy" else f"{metric_name(run.metric)} of "
    share = is_share(run.metric)
    ends = f" {interval({'low': entry['low'], 'high': entry['high']}, share)}" if entry.get("low") is not None else ""
    over = f", on {entry['samples']:,} test samples" if entry.get("samples") else ""
    clients = int(entry.get("clients") or 0)
    several = f", mean over {plural(clients, sites(run)[:-1])}" if clients > 1 else ""
    return f"{what}{figure(entry['final'], share)}{ends}{over}{several}"


def score_rows(run: Run) -> list[Data]:
    """A row per score: whose, value, low, high, samples."""
    return [
        {
            "score": score,
            "label": names(run)[score],
            "value": [rounded(entry.get(key)) for key in ("final", "low", "high")],
            "samples": entry.get("samples"),
        }
        for score, entry in scores(run).items()
    ]


def pooled_confusion(run: Run) -> tuple[str, Data] | None:
    """Whose predictions were counted by true and predicted class, and the measures that hold them."""
    tables: dict[str, Any] = run.summary.get("measures") or {}
    return next(((score, tables[score]) for score in SCORES if (tables.get(score) or {}).get("confusion")), None)


def confusion(run: Run) -> Data | None:
    """The matrix of few classes, in samples."""
    found = pooled_confusion(run)
    if found is None or len(found[1]["confusion"]) > MOST_CLASSES:
        return None
    score, table = found
    return {"of": words(run, score), "classes": list(table["per_class"]), "counts": table["confusion"]}


# -- several methods ---------------------------------------------------------------------------------------------------
def comparison(subject: Subject) -> list[str]:
    """Who beats the baseline, by how much."""
    found = subject.comparison or paired.compare_runs(subject)
    tables = paired.tables(found)
    finals = {table["score"]: table for table in tables}
    table = next((finals[f"{score}.final"] for score in SCORES if f"{score}.final" in finals), None)
    if table is None:
        return ["These runs cannot be compared pair by pair: they differ in data, clients or seeds."]
    baseline, run = str(found["baseline"]), subject.groups[0].first
    rows = [row for row in table["rows"] if row["difference"] and row["difference"].get("mean") is not None]
    rows.sort(key=lambda row: -sign_of(run.metric) * row["difference"]["mean"])
    what = words(run, table["score"].removesuffix(".final"))
    seeds = plural(max(len(group.runs) for group in subject.groups), "seed")
    said = [beats(row, baseline, run.metric) for row in rows[:BEST]]
    brackets = "; in brackets the 95 % interval" if any("[" in text for text in said) else ""
    return [*said, f"By the {metric_name(run.metric)} of {what}, over {seeds}{brackets}."]


def beats(row: Data, baseline: str, metric: str = "accuracy") -> str:
    """A method against the baseline, with the interval of the difference."""
    found, share, sign = row["difference"], is_share(metric), sign_of(metric)
    size = f"{size_of(found['mean'], share)}{points(share)}"
    if found.get("low") is None or found.get("high") is None:
        if not found["mean"] and found.get("pairs", 1) > 1:
            return f"{row['label']} and {baseline} score exactly the same with every seed."
        ahead = "ahead of" if sign * found["mean"] > 0 else "behind"
        if found.get("pairs", 1) > 1:
            return f"{row['label']} is {ahead} {baseline} by {size}, the same with every seed."
        return f"{row['label']} is {ahead} {baseline} by {size} with one seed, which is no proof; use --seeds 3."
    low, high = sorted((abs(found["low"]), abs(found["high"])))
    if found["low"] > 0 or found["high"] < 0:
        verb = "beats" if sign * found["mean"] > 0 else "loses to"
        holm = found.get("p_holm")
        doubt = f", which among so many comparisons may be luck (p {holm:.2g} by Holm)" if (holm or 0) >= 0.05 else ""
        return f"{row['label']} {verb} {baseline} by {size} [{size_of(low, share)}, {size_of(high, share)}]{doubt}."
    ends = f"[{change(found['low'], share)}, {change(found['high'], share)}]"
    return (
        f"Between {row['label']} and {baseline} there is no clear difference: {change(found['mean'], share)}"
        f"{points(share)} {ends}."
    )


def size_of(value: float, share: bool) -> str:
    """How large a difference is, without its sign."""
    return change(abs(value), share).removeprefix("+")


# -- what left the sites -----------------------------------------------------------------------------------------------
def left(subject: Subject) -> str:
    """What was sent, and what never was."""
    run = subject.groups[0].first
    sent = run.summary.get("bytes_up_total", run.summary.get("bytes_up"))
    if not sent:
        return ""
    if run.node:
        return (
            f"{size_text(sent)} of model updates left {run.node}, {with_scores(run)}; no sample and no sample's label. "
            "leaves.log in the node's folder lists every message."
        )
    clients = int(run.summary.get("clients") or run.config["clients"])
    each = f"{size_text(sent / max(clients, 1))} a {'site' if run.from_nodes else 'client'}"
    if not run.from_nodes:
        return (
            f"Clients were simulated on this machine, and nothing left it. Among organisations, {clients:,} clients "
            f"would have sent {size_text(sent)} of model updates, {each}, and no sample."
        )
    sums = " Under secure aggregation only sums over the sites were seen." if run.config.get("secure") else ""
    return (
        f"{size_text(sent)} of model updates left the {clients:,} sites in all, {each}, {with_scores(run)}; no sample "
        f"and no sample's label.{sums} leaves.log at each site lists every message.{privacy(run)}"
    )


def with_scores(run: Run) -> str:
    """What is sent besides updates, in words."""
    if run.config.get("privacy_clip") is not None and run.config.get("privacy_at") == "node":
        return "and no score, as these have no noise"
    if not run.config.get("score_bins", 1):
        return "with scores"
    return "with scores, histograms of scores and, from these, how many test samples each class has"


def privacy(run: Run) -> str:
    """The differential privacy that was spent, where it was counted."""
    spent = run.summary.get("privacy") or {}
    if spent.get("epsilon") is None:
        return ""
    return f" Differential privacy of {spent['covers']}: epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g}."


def size_text(count: float) -> str:
    """Bytes for people."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.3g} {units[0]}"
