"""What was run: method, data, clients, the command that runs it again, and every setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedframe.report.page.command import command
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Section
from fedframe.settings import data_name
from fedframe.util.text import plural

RECENT = 10  # rounds whose pace the time left is guessed from
FEW_NAMES = 8  # sites that a subtitle names
LONGEST = 60  # characters of a headline's list of methods
READ = "The command repeats the run to the same bits; all settings are below it."


def section(subject: Subject) -> Section:
    """The first section of the page."""
    entries = [
        {
            "label": group.label,
            "seeds": [run.seed for run in group.runs],
            "commands": [command(run.config, run.path) for run in group.runs],
            "facts": [*facts(group.first), *changed_code(group.runs)],
            "settings": {name: setting_text(value) for name, value in group.first.config.items()},
            "state": state(group.first),
        }
        for group in subject.groups
    ]
    data = {"groups": entries, "command": subject.comparison.get("command", "")}
    return Section("about", "What was run", READ, data)


def facts(run: Run) -> list[list[str]]:
    """The most important settings, as name and text."""
    config = run.config
    clients, share = config.get("clients"), float(config.get("participation") or 1)
    each = f"{share:.0%} of them in a round" if share < 1 else "all of them in every round"
    counts = run.summary.get("train_per_class", {})
    samples = (
        f", {sum(counts.values()):,} training samples in {plural(len(counts), 'class', 'classes')}" if counts else ""
    )
    work = plural(int(config["steps"]), "step") if config.get("steps") else plural(int(config["epochs"]), "epoch")
    rows = {
        "method": str(config.get("method")),
        "data": f"{data_name(str(config.get('data')))}{samples}",
        "clients": f"{clients}, {each}; split {config.get('partition')}",
        "net": str(config.get("model")).rpartition("/")[2] + parameters(run),
        "training": f"{plural(int(config['rounds']), 'round')} of {work}, batch {config.get('batch')}, "
        f"{config.get('optimizer')} with learning rate {config.get('lr')}",
        "folder": run.path.as_posix(),
    }
    return [[name, text] for name, text in rows.items()]


def changed_code(runs: Sequence[Run]) -> list[list[str]]:
    """The files of runs that went on with other code than they began with; none is the rule."""
    changes = [change for run in runs for change in run.summary.get("changed_code", [])]
    texts = [f"{', '.join(change['files'])} after round {change['after_round']}" for change in changes]
    return [["changed code", "; ".join(dict.fromkeys(texts))]] if texts else []


def parameters(run: Run) -> str:
    """The size of the net, where it is known."""
    count = run.summary.get("parameters")
    return f", {int(count):,} parameters" if count else ""


def setting_text(value: Any) -> str:
    """A setting's value for readers."""
    return "" if value is None or value == {} else str(value)


def state(run: Run) -> str:
    """Whether the run is finished, or the round that it has reached."""
    if run.summary:
        return "finished"
    return f"round {run.rounds_done} of {run.config.get('rounds')}"


def progress(subject: Subject) -> str:
    """The progress of all runs, in a few words."""
    states = [state(run) for run in subject.runs]
    if len(set(states)) == 1:
        return states[0]
    return f"{states.count('finished')} of {plural(len(states), 'run')} finished"


def time_left(subject: Subject) -> dict[str, Any] | None:
    """Rounds that are done, all rounds, and the seconds that the rest will take; None if no run goes on."""
    runs = [run for run in subject.runs if not run.summary]
    total = sum(int(run.config["rounds"]) for run in subject.runs)
    if not runs or not total:
        return None
    finished = sum(int(run.config["rounds"]) for run in subject.runs if run.summary)
    done = finished + sum(run.rounds_done for run in runs)
    recent = [float(line.get("seconds") or 0) for run in runs for line in run.metrics[-RECENT:]]
    pace = sum(recent) / len(recent) if recent else None
    return {"done": done, "total": total, "left": None if pace is None else pace * (total - done)}


def title(subject: Subject) -> str:
    """The headline of the page."""
    data = {data_name(str(run.config.get("data"))) for run in subject.runs}
    where = data.pop() if len(data) == 1 else "different data"
    if node := next((run.node for run in subject.runs if run.node), ""):
        where = f"{node}'s own data"
    return f"{method_names(subject)} on {where}"


def method_names(subject: Subject) -> str:
    """The names of the methods where there is room, else their number; settings of one method count as one method."""
    labels = [group.label for group in subject.groups]
    if len(join_names(labels)) <= LONGEST:
        return join_names(labels)
    names = list(dict.fromkeys(str(group.first.config.get("method")) for group in subject.groups))
    methods = join_names(names) if len(join_names(names)) <= LONGEST else plural(len(names), "method")
    cases = {group.case for group in subject.groups if group.case}
    if cases:
        return f"{methods} in {plural(len(cases), 'case')}"
    return methods if len(names) == len(labels) else f"{methods} in {plural(len(labels), 'setting')}"


def join_names(names: Sequence[str]) -> str:
    """Names as a list, "a, b and c"; with semicolons where names contain commas."""
    if len(names) == 1:
        return names[0]
    return f"{('; ' if any(',' in name for name in names) else ', ').join(names[:-1])} and {names[-1]}"


def subtitle(subject: Subject) -> str:
    """What all runs have in common, in one line."""
    configs = [run.config for run in subject.runs]
    first = subject.groups[0].first
    named = subject.single and first.from_nodes and 0 < len(first.names) <= FEW_NAMES
    parts = [f"{plural(len(first.names), 'site')}: {join_names(first.names)}"] if named else []
    for name in ("rounds",) if named else ("partition", "clients", "rounds"):
        values = {config.get(name) for config in configs}
        if len(values) == 1:
            value = values.pop()
            parts.append(f"split {value}" if name == "partition" else plural(int(value or 0), name[:-1]))
    seeds = sorted({run.seed for run in subject.runs})
    parts.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds")
    return " · ".join(parts)
