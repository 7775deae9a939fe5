"""The page of a bench, written from its JSON alone: tables, and sentences on what they do and do not show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedframe.core.measures import is_share, metric_name, sign_of
from fedframe.experiments.compare.statistics import ACCURACIES, setting_text
from fedframe.experiments.compare.tables import interval, number, p_text
from fedframe.experiments.grid.scores import COSTS, heading
from fedframe.experiments.tables import DASH, Chapter, Document, Table
from fedframe.util.text import plural

Json = Mapping[str, Any]
LEVEL = 0.05  # of the tests, after Holm's adjustment
JUDGED = ("generic.last_five", "generic.final", "personal.final")  # the differences that are tested on the page


def make_page(record: Json) -> Document:
    """The document of a bench."""
    cases = record["results"]
    chapters = [Chapter("What was run", [*about_tables(record)], about_notes(record))]
    if len(cases) > 1:
        chapters.append(Chapter("All cases", [*overview(record)], []))
    for case, result in cases.items():
        chapters.append(Chapter(case or "Result", [*case_tables(record, result)], case_notes(record, result)))
    return Document(f"{record['scene']}: {record['title']}", record["command"], chapters)


def about_tables(record: Json) -> Iterator[Table]:
    """What is the same for all rows, and what the rows are."""
    settings = {**record["settings"], "lr": "tuned"}
    rows = [(name, "none" if value is None else setting_text(value)) for name, value in settings.items()]
    yield Table("The same for every row", ("setting", "value"), tuple(rows))
    shown = []
    for row in record["rows"]:
        main = row["main"]
        beside = f"{main['setting']}: {', '.join(map(setting_text, main['values']))}" if main else DASH
        own = [f"{name}={setting_text(value)}" for name, value in flat(row["settings"]).items()]
        kind = "control" if row["control"] else "row"
        shown.append((row["label"], f"`{row['method']}`", kind, "; ".join(own) or DASH, beside, row["why"] or DASH))
    columns = ("row", "method", "", "settings of its own", "tuned beside the rate, values beside the default", "why")
    yield Table("Rows", columns, tuple(shown))


def flat(settings: Json) -> dict[str, Any]:
    """Settings of parts as part.name."""
    values = {name: value for name, value in settings.items() if name != "set"}
    return values | {f"{part}.{name}": v for part, each in settings.get("set", {}).items() for name, v in each.items()}


def about_notes(record: Json) -> list[str]:
    """How the numbers were made, and what they cost."""
    tuning, expected = record["tuning"], record["cpu_hours_estimated"]
    rates = ", ".join(f"{rate:g}" for rate in tuning["rates"])
    rounds = (
        "with all rounds"
        if tuning["mode"] == "full"
        else f"by halving: all after {100 * tuning['start']:g} % of the rounds, the better half after twice that, ..."
    )
    commit = f", commit {record['commit']}" if record["commit"] else ""
    guess = f" ({expected:.2f} had been estimated)" if expected is not None else ""
    return [
        f"Every row chose its rate from {rates} (times its factor), {rounds}; up to {tuning['extend']} more where the "
        f"best was at an end; then {tuning['refine']} candidates around the best: its main setting, or rates between.",
        f"Choices were made on {100 * tuning['share']:g} % of each client's training data with "
        f"{plural(tuning['seeds'], 'seed')}; no test data were used.",
        f"The control with a rate cut has lr_schedule = {record['rate_cut']}; no other row has another schedule.",
        f"Fedframe {record['version']}{commit}; {record['runs']} runs, {record['cpu_hours']:.2f} CPU hours{guess}. "
        "Runs that diverged are not in the hours.",
        *record["notes"],
    ]


def overview(record: Json) -> Iterator[Table]:
    """A table per judged score: rows down, cases across."""
    cases = record["results"]
    labels = [row["label"] for row in record["rows"]]
    for score in JUDGED:
        if not any(score in result["accuracies"] for result in cases.values()):
            continue
        rows = []
        for place, label in enumerate(labels):
            texts = [
                number(result["methods"][place]["scores"][score]["mean"], score, share=is_share(metric_of(result)))
                for result in cases.values()
            ]
            rows.append((label, *texts))
        units = dict.fromkeys(measured(result) for result in cases.values())
        yield Table(f"{heading(score)}: {'; '.join(units)}, mean over seeds", ("row", *cases), tuple(rows))


def metric_of(result: Json) -> str:
    """What the scores of a case are; accuracy in results of earlier versions."""
    return str(result.get("metric", "accuracy"))


def measured(result: Json) -> str:
    """The same in words, with its unit."""
    metric = metric_of(result)
    return f"{metric_name(metric)}{' in percent' if is_share(metric) else ''}"


def case_tables(record: Json, result: Json) -> Iterator[Table]:
    """Scores, differences, costs and trials of a case."""
    scores, methods = result["accuracies"], result["methods"]
    seeds, share, what = len(result["seeds"]), is_share(metric_of(result)), measured(result)
    rows = [(m["label"], chosen_text(m), *(score_text(m, score, seeds, share) for score in scores)) for m in methods]
    columns = ("row", "chosen", *map(heading, scores))
    title = f"{what[:1].upper()}{what[1:]}, mean and 95 % interval over {seeds} seeds"
    yield Table(title, columns, tuple(rows))
    differences = []
    for score in dict.fromkeys(
        name for name in (*JUDGED, *(s for s in scores if s not in ACCURACIES)) if name in scores
    ):
        for method in methods:
            each = method["difference"].get(score)
            if each is None or each["mean"] is None:
                continue
            bounds = interval(each["low"], each["high"], score, True, share)
            mean = number(each["mean"], score, True, share)
            texts = (mean, bounds, p_text(each["p"]), p_text(each["p_holm"]), str(each["pairs"]))
            differences.append((heading(score), method["label"], *texts))
    named = ("score", "row", "difference", "95 % interval", "p", "p, Holm", "seeds")
    counted = "in points" if share else "below 0 is better" if sign_of(metric_of(result)) < 0 else "as they are"
    title = f"Difference to {result['baseline']} at the same schedule, {counted}, seed by seed"
    yield Table(title, named, tuple(differences), keys=2)
    costs = [*COSTS]
    rows = [(m["label"], *(number(m["scores"][c]["mean"], c) for c in costs)) for m in methods]
    yield Table("Cost of a run, mean over seeds", ("row", *map(heading, costs)), tuple(rows))
    trials = [
        (
            trial["label"],
            candidate_text(trial["candidate"]),
            str(trial["rounds"]),
            number(trial["mean"], "generic.final", share=share) if trial["mean"] is not None else "diverged",
            "chosen" if trial["chosen"] else "",
        )
        for trial in (result["tuning"] or {"trials": ()})["trials"]
    ]
    yield Table(
        "All candidates, on held-out training data",
        ("row", "candidate", "rounds", metric_name(metric_of(result)), ""),
        tuple(trials),
    )


def candidate_text(values: Json) -> str:
    """Settings as one writes them."""
    return " ".join(f"{name}={setting_text(value)}" for name, value in values.items())


def chosen_text(method: Json) -> str:
    """What was chosen for a row."""
    return candidate_text(method["chosen"]) if method["chosen"] else DASH


def score_text(method: Json, score: str, seeds: int, share: bool = True) -> str:
    """A mean with its interval, and over how many seeds it is if some are missing."""
    found, states = method["scores"][score], method["states"]
    troubled = [f"{states.count(state)} {state}" for state in ("diverged", "failed") if state in states]
    if not states:
        return "diverged in tuning"
    if found["mean"] is None:
        return ", ".join(troubled) or DASH
    text = number(found["mean"], score, share=share)
    if found["low"] is not None:
        text += f" {interval(found['low'], found['high'], score, share=share)}"
    return text if found["count"] == seeds else f"{text} ({found['count']} of {seeds} seeds)"


def case_notes(record: Json, result: Json) -> list[str]:
    """What a case shows, in sentences, before the notes on how it was made."""
    return [*verdicts(record, result), *result["notes"]]


def verdicts(record: Json, result: Json) -> Iterator[str]:
    """Who is better than the baseline beyond chance, and whether a control would have done."""
    metric = metric_of(result)
    for score in (name for name in JUDGED if name in result["accuracies"]):
        judged = [(m, m["difference"][score]) for m in result["methods"] if score in m["difference"]]
        known = [(m["label"], each) for m, each in judged if each["mean"] is not None]
        sure = [(label, each) for label, each in known if each["p_holm"] is not None and each["p_holm"] < LEVEL]
        texts = [f"{label} {number(each['mean'], score, True, is_share(metric))}" for label, each in sure]
        name, baseline = heading(score), result["baseline"]
        if texts:
            yield f"{name}: different from {baseline} beyond chance (p, Holm below {LEVEL:g}): {', '.join(texts)}."
        elif known:
            yield f"{name}: no row differs from {baseline} beyond chance (p, Holm below {LEVEL:g})."
        means = {m["label"]: m["scores"][score]["mean"] for m in result["methods"]}
        known_means = {k: v for k, v in means.items() if v is not None}
        yield from best_beside_controls(known_means, record["rows"], score, metric)


def best_beside_controls(
    means: Mapping[str, float], rows: Sequence[Json], score: str, metric: str = "accuracy"
) -> Iterator[str]:
    """The best row beside the best control; one that has all data in one place is a bound, not a rival."""
    own = [row["label"] for row in rows if not row["control"] and row["label"] in means]
    rivals = [row["label"] for row in rows if row["control"] and not row["bound"] and row["label"] in means]
    if own and rivals:
        share, sign = is_share(metric), sign_of(metric)
        best, rival = (max(names, key=lambda label: sign * means[label]) for names in (own, rivals))
        more = f"{number(means[best] - means[rival], score, True, share)}{' points' if share else ''}"
        yield (
            f"{heading(score)}: the best row is {best} ({number(means[best], score, share=share)}), the best control "
            f"{rival} ({number(means[rival], score, share=share)}): {more}. The best of several is flattered by chance."
        )
