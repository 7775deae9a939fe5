"""A comparison as tables of texts, of one problem or of several cases side by side: what every format shows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedframe.core.measures import is_share, metric_name, sign_of
from fedframe.experiments.compare.notes import notes
from fedframe.experiments.compare.statistics import ComparisonStatistics
from fedframe.experiments.compare.tuning import explain_select
from fedframe.experiments.grid.scores import heading, is_accuracy
from fedframe.experiments.tables import DASH, Chapter, Document, Table
from fedframe.metrics.statistics import FEWEST, Difference, Estimate
from fedframe.util.text import plural

TITLE = "Comparison"


def title(comparison: ComparisonStatistics) -> str:
    """What the scores are, as a title."""
    name = metric_name(comparison.metric)
    return f"{name[:1].upper()}{name[1:]}{unit(comparison)}"


def unit(comparison: ComparisonStatistics) -> str:
    """What scores are written in, behind their name."""
    return " in percent" if is_share(comparison.metric) else ""


def make_document(comparisons: Sequence[ComparisonStatistics]) -> Document:
    """One comparison as it is; of several cases first all scores side by side, then each case in full."""
    chapters = [Chapter(each.plan.case, [*tables(each)], notes(each)) for each in comparisons]
    if len(comparisons) > 1:
        cases = ", ".join(each.plan.case for each in comparisons)
        note = f"Each of {cases} is a separate case: all methods were tuned (if at all) and scored in each one."
        chapters.insert(0, Chapter("All cases", [*overview(comparisons)], [note]))
    return Document(TITLE, comparisons[0].command, chapters)


def paper_document(comparisons: Sequence[ComparisonStatistics]) -> Document:
    """The document for LaTeX: scores as papers print them, mean ± standard deviation with the best in bold."""
    document = make_document(comparisons)
    full = [chapter for chapter in document.chapters if chapter.heading in {each.plan.case for each in comparisons}]
    papers = {id(chapter): each for chapter, each in zip(full, comparisons, strict=True)}
    chapters = [
        replace(chapter, tables=[deviation_table(papers[id(chapter)]), *chapter.tables[1:]])
        if id(chapter) in papers
        else chapter
        for chapter in document.chapters
    ]
    return replace(document, chapters=chapters)


def deviation_table(comparison: ComparisonStatistics) -> Table:
    """Methods down, scores across, each as mean ± standard deviation over seeds; the best of a column is in bold."""
    scores, count = comparison.accuracies, len(comparison.plan.seeds)
    rows, best = [], []
    for label in comparison.labels:
        rows.append((label, *(deviation_text(comparison, label, score) for score in scores)))
    for column, score in enumerate(scores, 1):
        means = [comparison.scores[label][score].mean for label in comparison.labels]
        share, sign = is_share(comparison.metric), sign_of(comparison.metric)
        # As printed: what looks equal is equally good.
        shown = {row: sign * (round(100 * mean, 2) if share else float(f"{mean:.4g}"))
                 for row, mean in enumerate(means) if mean is not None}  # fmt: skip
        if len(shown) > 1:
            best += [(row, column) for row, value in shown.items() if value == max(shown.values())]
    over = "one seed" if count == 1 else f"mean ± standard deviation over {count} seeds"
    return Table(
        f"{title(comparison)}, {over}, best in bold", ("method", *map(heading, scores)), tuple(rows),
        bold=frozenset(best),
    )  # fmt: skip


def deviation_text(comparison: ComparisonStatistics, label: str, score: str) -> str:
    """A mean with its standard deviation; what is said of missing seeds stays."""
    found: Estimate = comparison.scores[label][score]
    if found.mean is None or found.count < FEWEST:
        return estimate_text(comparison, label, score)
    share = is_share(comparison.metric)
    text = f"{number(found.mean, score, share=share)} ± {number(statistics.stdev(found.known), score, share=share)}"
    asked = len(comparison.plan.seeds)
    return f"{text} ({found.count} of {asked} seeds)" if found.count < asked else text


def overview(comparisons: Sequence[ComparisonStatistics]) -> Iterator[Table]:
    """A table per accuracy: methods down, cases across."""
    columns = ("method", *(each.plan.case for each in comparisons))
    for score in dict.fromkeys(score for each in comparisons for score in each.accuracies):
        title = f"{heading(score)}{unit(comparisons[0])}, {over_seeds(comparisons[0])}"
        rows = [
            (label, *(estimate_text(each, label, score) if score in each.accuracies else DASH for each in comparisons))
            for label in comparisons[0].labels
        ]
        yield Table(title, columns, tuple(rows))


def tables(comparison: ComparisonStatistics) -> Iterator[Table]:
    """All tables of a comparison."""
    yield score_table(comparison, f"{title(comparison)}, {over_seeds(comparison)}", comparison.accuracies)
    if comparison.differences:
        yield difference_table(comparison)
    cost = over_seeds(comparison).replace("and", "± half of the")
    yield score_table(comparison, f"Cost, {cost}", comparison.cost_scores)
    if comparison.tuned is not None:
        yield tuning_table(comparison)
    differing = comparison.differing_settings
    if differing:
        rows = zip(comparison.labels, *differing.values(), strict=True)
        yield Table("Settings that differ", ("method", *differing), tuple(rows))


def number(value: float | None, score: str, sign: bool = False, share: bool = True) -> str:
    """An accuracy in percent, bytes in millions, other costs as they are; a dash for what is not there."""
    if value is None:
        return DASH
    if is_accuracy(score) and not share:
        return f"{value:+.4g}" if sign else f"{value:.4g}"
    if is_accuracy(score):
        return f"{100 * value:+.2f}" if sign else f"{100 * value:.2f}"
    return f"{value / 1e6:,.3f}" if score.startswith("bytes") else f"{value:,.1f}"


def interval(low: float | None, high: float | None, score: str, sign: bool = False, share: bool = True) -> str:
    """[low, high]."""
    return DASH if low is None else f"[{number(low, score, sign, share)}, {number(high, score, sign, share)}]"


def estimate_text(comparison: ComparisonStatistics, label: str, score: str) -> str:
    """A mean with its interval, and over how many seeds it is if some are missing."""
    found: Estimate = comparison.scores[label][score]
    states = [outcome.state for outcome in comparison.outcomes[label]]
    troubled = [f"{states.count(state)} {state}" for state in ("diverged", "failed") if state in states]
    asked = len(comparison.plan.seeds)
    if not states:
        row = comparison.plan.rows[comparison.labels.index(label)]
        failed = comparison.tuned is not None and comparison.tuned.failed(row)
        return "failed in tuning" if failed else "diverged in tuning"
    if found.mean is None:
        return ", ".join(troubled) or ("not reached" if ":" in score and has_generic(comparison, label) else DASH)
    share = is_share(comparison.metric)
    text = number(found.mean, score, share=share)
    if found.low is not None and found.high is not None:
        if is_accuracy(score):
            text += f" {interval(found.low, found.high, score, share=share)}"
        elif found.low < found.high:  # bytes are often the same for all seeds
            text += f" ± {number((found.high - found.low) / 2, score)}"
    if found.count < asked:
        text += f" ({found.count} of {asked} seeds{', ' if troubled else ''}{', '.join(troubled)})"
    return text


def has_generic(comparison: ComparisonStatistics, label: str) -> bool:
    """Whether a method has a shared model that was scored."""
    return comparison.scores[label]["generic.final"].count > 0


def p_text(value: float | None) -> str:
    """A p-value in three digits."""
    if value is None:
        return DASH
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def over_seeds(comparison: ComparisonStatistics) -> str:
    """Over how many seeds the numbers are."""
    count = len(comparison.plan.seeds)
    return "one seed" if count == 1 else f"mean and 95 % interval over {count} seeds"


def score_table(comparison: ComparisonStatistics, title: str, scores: list[str]) -> Table:
    """Methods down, scores across."""
    rows = tuple((label, *(estimate_text(comparison, label, score) for score in scores)) for label in comparison.labels)
    return Table(title, ("method", *map(heading, scores)), rows)


def difference_table(comparison: ComparisonStatistics) -> Table:
    """A row per score and method."""
    rows, share = [], is_share(comparison.metric)
    for score in comparison.accuracies:
        for label, found in comparison.differences.items():
            each: Difference = found[score]
            p = [p_text(each.p), p_text(each.p_holm)] if len(comparison.differences) > 1 else [p_text(each.p)]
            bounds = interval(each.low, each.high, score, True, share)
            rows.append((heading(score), label, number(each.mean, score, True, share), bounds, *p, str(each.pairs)))
    adjusted = ("p, Holm",) if len(comparison.differences) > 1 else ()
    columns = ("score", "method", "difference", "95 % interval", "p", *adjusted, "seeds")
    counted = " in points" if share else " (below 0 is better)" if sign_of(comparison.metric) < 0 else ""
    return Table(f"Difference to {comparison.baseline}{counted}, seed by seed", columns, tuple(rows), keys=2)


def tuning_table(comparison: ComparisonStatistics) -> Table:
    """A row per candidate: its validation score, and whether it was chosen."""
    assert comparison.tuned is not None
    tuned = comparison.tuned
    rows = []
    for trial in tuned.trials:
        bad = [state for state in trial.states if state != "finished"]
        mean = (
            number(trial.mean, "generic.final", share=is_share(trial.metric))
            if trial.mean is not None
            else f"{len(bad)} {bad[0]}"
        )
        chosen = "chosen" if trial.candidate == tuned.chosen(trial.row) else ""
        rows.append((trial.row.label, str(trial.candidate), mean, chosen))
    seeds = plural(len(tuned.tuning.seeds), "seed")
    written = f",{unit(comparison)}" if unit(comparison) else ""
    title = f"Validation, {explain_select(tuned.tuning.select)}, mean over {seeds}{written}"
    return Table(title, ("method", "candidate", "validation", ""), tuple(rows), keys=2)
