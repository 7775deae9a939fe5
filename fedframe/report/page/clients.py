"""The clients: which classes each of them holds, and how well each of them is served."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from fedframe.core.measures import is_share, metric_name, sign_of
from fedframe.metrics.accuracy import spread
from fedframe.report.page.runs import Group, Run, Subject
from fedframe.report.page.scores import first_seed, names
from fedframe.report.page.section import Data, Section, of_single_runs, rounded, shown_classes
from fedframe.util.text import figure, plural

PARTITION = Section(
    "partition",
    "Who has what",
    "Each column is a client, each row a class; the stronger the colour, the more training samples of that class the "
    "client holds. Uneven columns are what makes federated learning hard.",
)
MOST_CLIENTS = 1000  # whose samples an examination counts


def partition_section(subject: Subject) -> Section:
    """The heat map of clients and classes."""
    return of_single_runs(subject, PARTITION, partition_data, partition_text)


def partition_data(run: Run) -> Data | None:
    """Counts, names and sizes of a run's clients."""
    found = run.examination.get("partition")
    if not found or not found.get("counts"):
        return None
    counts = found["counts"]
    names = found.get("names") or [run.client_name(client) for client in found["clients"]]
    return {
        "classes": shown_classes(run.examination, len(counts[0])),
        "clients": [str(name) for name in names],
        "counts": counts,
        "sizes": found.get("sizes") or [sum(row) for row in counts],
        "note": partition_note(len(counts), int(run.config.get("clients") or len(counts))),
    }


def partition_note(shown: int, total: int) -> str:
    """Which clients are left out, and why."""
    if shown >= total:
        return ""
    if shown >= MOST_CLIENTS:
        return f"{shown:,} of {total:,} clients are shown."
    return f"{plural(total - shown, 'client')} kept out of the training, to be scored as new, not shown."


def partition_text(data: Data) -> str:
    """The spread of sizes and of classes in words."""
    sizes = data["sizes"]
    held = [sum(count > 0 for count in row) for row in data["counts"]]
    return (
        f"{len(sizes)} clients hold {min(sizes):,} to {max(sizes):,} training samples each, of {min(held)} to "
        f"{max(held)} of {len(data['classes'])} classes."
    )


SPREAD = Section(
    "spread",
    "Spread over clients",
    "Every client's score on its own test data, from the worst served to the best; a flat, high line means that "
    "nobody is left behind, which a mean alone does not tell.",
)
NO_CLIENT_SCORES = (
    "This run has no scores by client (client_scores.json); runs of this version write them when they finish."
)
FEW = 8  # clients that have a bar each, with their names
FEW_READ = "Every {site}'s score on its own test data, with its 95 % interval and the number of test samples."
SPREAD_LATER = "Appears when the run is finished: every client is scored after the last round."


def spread_section(subject: Subject) -> Section:
    """Sorted accuracies of the shared and the personal models."""
    panels: list[Data] = [
        {"key": kind, "label": names(subject.groups[0].first)[kind], "series": lines}
        for kind in ("client", "personal")
        if (lines := [line for group in subject.groups if (line := spread_data(group, kind)) is not None])
    ]
    if not panels:
        finished = any(run.summary for run in subject.runs)
        return replace(SPREAD, missing=NO_CLIENT_SCORES if finished else SPREAD_LATER)
    if subject.single:  # shared and personal models side by side
        lines = [{**line, "label": panel["label"]} for panel in panels for line in panel["series"]]
        panels = [{"key": "both", "label": "both", "series": lines}]
    data = {"panels": panels, "metric": metric_name(subject.groups[0].first.metric)}
    few = all(len(line["values"]) <= FEW for panel in panels for line in panel["series"])
    if few:
        site = "site" if subject.groups[0].first.from_nodes else "client"
        section = replace(SPREAD, title=f"{site.capitalize()} by {site}", read=FEW_READ.format(site=site))
    else:
        section = SPREAD
    section = replace(section, read=section.read + first_seed(subject))
    lacking = [group.label for group in subject.groups if group.first.summary and not group.first.client_scores]
    if lacking:  # left out without a word it would look as if there had been none
        section = replace(section, read=f"{section.read} Without client_scores.json: {', '.join(lacking)}.")
    return replace(section, data={**data, "few": few}, alt=spread_text(panels[0]))


def spread_data(group: Group, kind: str) -> Data | None:
    """The clients of a method's first run, worst first."""
    run: Run = group.first
    scores = run.client_scores
    rows = [
        (float(accuracy), str(name), train, test, low, high)
        for name, accuracy, train, test, low, high in zip(
            scores.get("clients", []),
            scores.get(kind, []),
            scores.get("train_samples", []),
            scores.get("test_samples", []),
            scores.get(f"{kind}_low") or [None] * len(scores.get(kind, [])),
            scores.get(f"{kind}_high") or [None] * len(scores.get(kind, [])),
            strict=False,
        )
        if accuracy is not None
    ]
    if not rows:
        return None
    sign = sign_of(run.metric)
    rows.sort(key=lambda row: sign * row[0])
    values = [row[0] for row in rows]
    found = spread(values, sign) or {}
    return {
        "label": group.label,
        "share": is_share(run.metric),
        "values": [rounded(value, 4) for value in values],
        "clients": [row[1] for row in rows],
        "train": [row[2] for row in rows],
        "test": [row[3] for row in rows],
        "low": [rounded(row[4], 4) for row in rows] if len(rows) <= FEW else [],
        "high": [rounded(row[5], 4) for row in rows] if len(rows) <= FEW else [],
        "mean": rounded(fmean(values)),
        "worst": rounded(found.get("worst_tenth")),
        "std": rounded(found.get("std")),
    }


def spread_text(panel: Data) -> str:
    """Mean, worst tenth and range in words."""
    return " ".join(map(spread_words, panel["series"]))


def spread_words(line: Data) -> str:
    """The same of one line."""
    mean, worst, first, last = (
        figure(value, line["share"]) for value in (line["mean"], line["worst"], line["values"][0], line["values"][-1])
    )
    clients = len(line["values"])
    return f"{line['label']}: mean {mean}, worst tenth {worst}, from {first} to {last} over {clients} clients."
