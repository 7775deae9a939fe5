"""A comparison as tables of texts: what every format shows, written once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedframe.experiments.compare.differing import differing_settings
from fedframe.experiments.compare.result import Comparison
from fedframe.experiments.compare.tuning import explain_select
from fedframe.experiments.grid.scores import COSTS, ROUNDS_TO, is_accuracy
from fedframe.metrics.statistics import Difference, Estimate
from fedframe.util.text import plural

DASH = "–"  # noqa: RUF001
SHORT = {"final": "", "last_five": ", last five"}
COST_NAMES = {"bytes_up": "MB up", "bytes_down": "MB down", "cpu_seconds": "CPU seconds", "seconds": "seconds"}


@dataclass(frozen=True)
class Block:
    """A table: a heading, the names of its columns, its lines."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def heading(score: str) -> str:
    """A score as a column's name."""
    kind, _, goal = score.partition(":")
    if goal:
        return f"{'rounds' if kind == ROUNDS_TO else 'seconds'} to {100 * float(goal):g} %"
    if score in COSTS:
        return COST_NAMES[score]
    name, _, kind = score.partition(".")
    return f"{name}{SHORT.get(kind, '')}"


def number(value: float | None, score: str, sign: bool = False) -> str:
    """An accuracy in percent, bytes in millions, other costs as they are; a dash for what is not there."""
    if value is None:
        return DASH
    if is_accuracy(score):
        return f"{100 * value:+.2f}" if sign else f"{100 * value:.2f}"
    return f"{value / 1e6:,.3f}" if score.startswith("bytes") else f"{value:,.1f}"


def interval(low: float | None, high: float | None, score: str, sign: bool = False) -> str:
    """[low, high]."""
    return DASH if low is None else f"[{number(low, score, sign)}, {number(high, score, sign)}]"


def estimate_text(comparison: Comparison, label: str, score: str) -> str:
    """A mean with its interval, and over how many seeds it is if some are missing."""
    found: Estimate = comparison.scores[label][score]
    states = [outcome.state for outcome in comparison.outcomes[label]]
    troubled = [f"{states.count(state)} {state}" for state in ("diverged", "failed") if state in states]
    asked = len(comparison.plan.seeds)
    if not states:
        return "diverged in tuning"
    if found.mean is None:
        return ", ".join(troubled) or ("not reached" if ":" in score and has_generic(comparison, label) else DASH)
    text = number(found.mean, score)
    if found.low is not None and found.high is not None:
        if is_accuracy(score):
            text += f" {interval(found.low, found.high, score)}"
        elif found.low < found.high:  # bytes are often the same for all seeds
            text += f" ± {number((found.high - found.low) / 2, score)}"
    if found.count < asked:
        text += f" ({found.count} of {asked} seeds{', ' if troubled else ''}{', '.join(troubled)})"
    return text


def has_generic(comparison: Comparison, label: str) -> bool:
    """Whether a method has a shared model that was scored."""
    return comparison.scores[label]["generic.final"].count > 0


def p_text(value: float | None) -> str:
    """A p-value in three digits."""
    if value is None:
        return DASH
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def blocks(comparison: Comparison) -> Iterator[Block]:
    """All tables of a comparison."""
    yield score_block(comparison, f"Accuracy in percent, {over_seeds(comparison)}", comparison.accuracies)
    if comparison.differences:
        yield difference_block(comparison)
    cost = over_seeds(comparison).replace("and", "± half of the")
    yield score_block(comparison, f"Cost, {cost}", comparison.cost_scores)
    if comparison.tuned is not None:
        yield tuning_block(comparison)
    differing = differing_settings(comparison)
    if differing:
        columns = ("method", *differing)
        rows = zip(comparison.labels, *differing.values(), strict=True)
        yield Block("Settings that differ", columns, tuple((*row,) for row in rows))


def over_seeds(comparison: Comparison) -> str:
    """Over how many seeds the numbers are."""
    count = len(comparison.plan.seeds)
    return "one seed" if count == 1 else f"mean and 95 % interval over {count} seeds"


def score_block(comparison: Comparison, title: str, scores: list[str]) -> Block:
    """Methods down, scores across."""
    rows = tuple((label, *(estimate_text(comparison, label, score) for score in scores)) for label in comparison.labels)
    return Block(title, ("method", *map(heading, scores)), rows)


def difference_block(comparison: Comparison) -> Block:
    """A line per score and method."""
    rows = []
    for score in comparison.accuracies:
        for label, found in comparison.differences.items():
            each: Difference = found[score]
            p = [p_text(each.p), p_text(each.p_holm)] if len(comparison.differences) > 1 else [p_text(each.p)]
            bounds = interval(each.low, each.high, score, sign=True)
            rows.append((heading(score), label, number(each.mean, score, sign=True), bounds, *p, str(each.pairs)))
    adjusted = ("p, Holm",) if len(comparison.differences) > 1 else ()
    columns = ("score", "method", "difference", "95 % interval", "p", *adjusted, "seeds")
    return Block(f"Difference to {comparison.baseline} in points, seed by seed", columns, tuple(rows))


def tuning_block(comparison: Comparison) -> Block:
    """A line per candidate: its validation score, and whether it was chosen."""
    assert comparison.tuned is not None
    tuned = comparison.tuned
    rows = []
    for trial in tuned.trials:
        bad = [state for state in trial.states if state != "finished"]
        mean = number(trial.mean, "generic.final") if trial.mean is not None else f"{len(bad)} {bad[0]}"
        chosen = "chosen" if trial.candidate == tuned.chosen(trial.row) else ""
        rows.append((trial.row.label, str(trial.candidate), mean, chosen))
    seeds = plural(len(tuned.tuning.seeds), "seed")
    title = f"Validation, {explain_select(tuned.tuning.select)}, mean over {seeds}, in percent"
    return Block(title, ("method", "candidate", "validation", ""), tuple(rows))
