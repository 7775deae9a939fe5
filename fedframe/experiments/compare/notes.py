"""What a reader of the tables has to know, in sentences."""

from __future__ import annotations

from fedframe.core.evaluation import EASIER_TASK
from fedframe.core.measures import meaning
from fedframe.core.part import ALL_DATA
from fedframe.experiments.compare.plan import Plan
from fedframe.experiments.compare.statistics import ComparisonStatistics
from fedframe.experiments.compare.tuning import explain_select
from fedframe.experiments.grid.scores import heading
from fedframe.methods.recipes import outline_method
from fedframe.util.text import sentence

FEW_SEEDS = 3
NORMAL = "It assumes that differences are normally distributed over seeds, which few seeds cannot show."


def notes(comparison: ComparisonStatistics) -> list[str]:
    """All sentences below the tables."""
    return [*protocol(comparison), *tests(comparison), *tuning(comparison), *comparison.remarks, *troubles(comparison)]


def protocol(comparison: ComparisonStatistics) -> list[str]:
    """How the numbers were made, and what they mean."""
    seeds = comparison.plan.seeds
    named = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    meanings = [f"{heading(name)}: {meaning}." for name, meaning in comparison.definitions.items()]
    load = (
        "Cells run side by side on one machine: seconds are times under that load, to be compared with each other only."
    )
    chosen = (
        ""
        if comparison.plan.target is not None or comparison.target is None
        else (
            f"The target, {100 * comparison.target:g} %, is what {comparison.baseline} reaches (mean of the last five "
            "evaluations over seeds, rounded down); --target sets another."
        )
    )
    same = f"Every method ran with {named}; a seed fixes partition, splits and the backbone's initial weights for all."
    partly = any(
        0 < comparison.scores[label][score].count < len(comparison.outcomes[label])
        for label in comparison.labels
        for score in comparison.cost_scores
        if ":" in score and all(outcome.state == "finished" for outcome in comparison.outcomes[label])
    )
    missed = (
        ["A mean over fewer seeds leaves out those that never reached the target, which flatters it."] if partly else []
    )
    metric = [] if comparison.metric == "accuracy" else [f"Scores are {meaning(comparison.metric)}."]
    both = {"generic.final", "personal.final"} <= {*comparison.accuracies}
    easier = [sentence(EASIER_TASK)] if both and comparison.knows_classes else []
    return [same, *metric, *meanings, *easier, *([chosen] if chosen else []), *missed, load]


def tests(comparison: ComparisonStatistics) -> list[str]:
    """Which intervals and tests these are."""
    if len(comparison.plan.seeds) < 2:
        return ["One seed: intervals and p-values need two or more; use --seeds 5."]
    found = ["Intervals: Student's t over seeds."]
    if len(comparison.plan.seeds) <= FEW_SEEDS:
        found[0] += " With so few they are wide, and may leave the range of an accuracy; --seeds 5 narrows them."
    if comparison.differences:
        text = "Differences: paired t test, two-sided, over the seeds in which both have the score (scipy's ttest_rel)"
        more = "; p, Holm: adjusted for the number of methods, within each score" if len(comparison.labels) > 2 else ""
        found.append(f"{text}{more}. {NORMAL}")
    for label, scores in comparison.differences.items():
        said: dict[str, list[str]] = {}
        for score, each in scores.items():
            if each.remark:
                said.setdefault(each.remark, []).append(heading(score))
        found += [f"{label}, {'; '.join(names)}: {remark}" for remark, names in said.items()]
    return found


def tuning(comparison: ComparisonStatistics) -> list[str]:
    """How settings were chosen, and whether all methods had the same chance."""
    tuned = comparison.tuned
    if tuned is None:
        return []
    about = tuned.tuning
    found = [
        f"Candidates were chosen by {explain_select(about.select)}, on {100 * about.share:g} % of each client's "
        "training data; neither the test set nor the clients' own test data were used. The chosen setting was then run "
        "on all training data, and only it was scored on the test data."
    ]
    counts = {row.label: len(row.candidates) for row in comparison.plan.rows}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{label} {count}" for label, count in counts.items())
        found.append(f"Tuning budgets differ; numbers of candidates: {listed}.")
    for row in comparison.plan.rows:
        for state in ("diverged", "failed"):
            names = "; ".join(str(trial.candidate) for trial in tuned.of(row) if state in trial.states)
            if names:
                found.append(f"{row.label}: not eligible, because a run {state}: {names}.")
        if tuned.failed(row):
            found.append(
                f"{row.label}: nothing was chosen, because a choice without the failed runs would not be fair."
            )
    return found


def troubles(comparison: ComparisonStatistics) -> list[str]:
    """Runs that gave no number, each with its reason."""
    finals = [outcome for found in comparison.outcomes.values() for outcome in found]
    diverged = [outcome for outcome in finals if outcome.state == "diverged"]  # in tuning that is named elsewhere
    bad = [f"{o.cell.name}: {o.state}. {o.reason}" for o in (*diverged, *comparison.failed)]
    return [*bad, "The same command tries failed runs again."] if comparison.failed else bad


def remarks_on(plan: Plan) -> list[str]:
    """What sets a method apart before anything is run."""
    found = []
    for row in plan.rows:
        method = outline_method(row.method)
        if not method.shares_a_model:
            found.append(f"{row.label} has no shared model: it has no generic and no client score.")
        if any(0 < part.server_samples < ALL_DATA for part in method.parts):
            found.append(f"{row.label} has the server take a few training samples away from the clients (see log.txt).")
    return found
