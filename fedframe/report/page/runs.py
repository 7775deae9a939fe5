"""What a page is about: run folders read into plain values, and runs of one method put together."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedframe.errors import DataError
from fedframe.runs.federated import is_organisers, not_here
from fedframe.runs.folder import CLIENT_SCORES, CONFIG, EXAMINATION, RunFolder
from fedframe.runs.round_files import SUMMARY
from fedframe.settings import REMOTE_DATA, USUAL_METRICS, Settings
from fedframe.util.files import read_json
from fedframe.util.text import plural

COMPARISON, GAIN = "comparison.json", "gain.json"
ALPHA = re.compile(r"(?<=dirichlet:)[^+:]+")  # the number that the field, and --sweep, call alpha

# Settings of runs that were made before a setting existed; method and data must be given.
DEFAULTS = {**Settings().model_dump(mode="json"), "method": "", "data": "", "metric": "accuracy"}

# Settings that say where a run is computed, or which of several equal runs it is: not part of its method.
NOT_THE_METHOD = frozenset({"seed", "workers", "engine", "device", "data_dir", "log"})


@dataclass(frozen=True)
class Run:
    """The files of one run; a missing one is empty."""

    path: Path
    examination_error: str = ""  # why the saved models could not be examined

    @cached_property
    def config(self) -> dict[str, Any]:
        """Every setting of the run, unchecked: a page of an old run must not fail for a setting that is gone."""
        return {**DEFAULTS, **RunFolder(self.path).config()}

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """A dictionary per finished round."""
        return RunFolder(self.path).metrics()

    @cached_property
    def drift(self) -> list[dict[str, Any]]:
        """A dictionary per round: clients, cosines, norms."""
        return RunFolder(self.path).drift()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Final scores; empty while the run is not finished."""
        return self._json(SUMMARY)

    @cached_property
    def client_scores(self) -> dict[str, Any]:
        """Scores of every client."""
        return self._json(CLIENT_SCORES)

    @cached_property
    def gain(self) -> dict[str, Any]:
        """What every client gains by joining; empty if that was not asked for."""
        return self._json(GAIN)

    @cached_property
    def examination(self) -> dict[str, Any]:
        """The examination of the saved models; empty if there is none, or only one that does not fit them now."""
        return {} if self.examination_error else self._json(EXAMINATION)

    @cached_property
    def names(self) -> list[str]:
        """The names of the clients; empty if they are numbered."""
        return RunFolder(self.path).names()

    @property
    def task(self) -> str:
        """What is learned; in runs of earlier versions always classes."""
        asked = str(self.config.get("task") or "auto")
        return "classification" if asked == "auto" else asked

    @property
    def knows_classes(self) -> bool:
        """Whether classes are learned, not numbers or several labels."""
        return self.task == "classification"

    @property
    def metric(self) -> str:
        """What the scores are."""
        usual = USUAL_METRICS.get(str(self.config.get("task")), "accuracy")
        return usual if self.config["metric"] == "auto" else str(self.config["metric"])

    @property
    def from_nodes(self) -> bool:
        """Whether it is a federation's run, whose data stay at the nodes."""
        return bool(self.config["data"] == REMOTE_DATA)

    @property
    def node(self) -> str:
        """The name of the node whose own part of a federation's run it is, once that is over; else nothing."""
        return str(self.summary.get("node") or "")

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config.get("seed") or 0)

    @property
    def rounds_done(self) -> int:
        """Finished rounds."""
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    def client_name(self, client: int) -> str:
        """The name of a client, or its number."""
        return self.names[client] if 0 <= client < len(self.names) else str(client)

    def _json(self, name: str) -> dict[str, Any]:
        return RunFolder(self.path).read(name) if (self.path / name).exists() else {}


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed: one method with one setting."""

    label: str
    runs: tuple[Run, ...]
    case: str = ""  # of a comparison that has several, such as alpha=0.1

    @property
    def first(self) -> Run:
        """The run whose details are shown."""
        return self.runs[0]


@dataclass(frozen=True)
class Subject:
    """All runs that a page shows, in groups."""

    groups: tuple[Group, ...]
    comparison: dict[str, Any] = field(default_factory=dict)  # of `fedframe compare`, if the page is about one
    folder: Path | None = None  # of the comparison

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]

    @property
    def single(self) -> bool:
        """Whether there is one method only."""
        return len(self.groups) == 1


def open_runs(folders: Sequence[Path]) -> Subject:
    """Read run folders, or one folder of `fedframe compare`."""
    for folder in folders:
        if (folder / COMPARISON).exists() and len(folders) > 1:
            raise DataError(f"{folder} is a whole comparison; give it alone, or give run folders.")
    if len(folders) == 1 and (folders[0] / COMPARISON).exists():
        comparison = read_comparison(folders[0])
        if "cases" not in comparison:
            return open_comparison(folders[0], comparison)
        if comparison["cases"]:
            return open_cases(folders[0], comparison["cases"])
    if len(folders) == 1 and not (folders[0] / CONFIG).exists() and (inside := runs_inside(folders[0])):
        return Subject(group_runs(inside), folder=folders[0])
    return Subject(group_runs([open_run(folder) for folder in dict.fromkeys(folders)]))


def read_comparison(folder: Path) -> dict[str, Any]:
    """What a comparison has found."""
    try:
        found = read_json(folder / COMPARISON)
        cases = found["cases"].values() if found.get("cases") else [found]
        for method in (method for case in cases for method in case["methods"]):
            str(method["name"]), [str(path) for path in method["runs"]]
    except (DataError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, DataError) else f"{folder / COMPARISON} is no comparison."
        raise DataError(f"{reason} The same 'fedframe compare' command writes it again.") from error
    return found


def open_run(folder: Path) -> Run:
    """Read a run folder; one that merely contains runs is not searched, since examining a run writes into it."""
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}")) if not (folder / CONFIG).exists() else []
    if inside:
        named = " ".join(map(str, inside[:2]))
        raise DataError(f"{folder} is not a run folder but holds {plural(len(inside), 'run')}; name them: {named} ...")
    run = Run(RunFolder.open(folder).path)
    if not run.config["method"] or not run.config["data"]:
        raise DataError(f"{folder / CONFIG} names no method and no data: it is not the settings of a run.")
    if run.from_nodes and not is_organisers(folder) and not run.node:
        raise DataError(not_here(folder))
    return run


def runs_inside(folder: Path) -> list[Run]:
    """The runs of a comparison that is not finished or has cases, without those that only tune a setting."""
    runs = [Run(path) for path in folders_inside(folder)]
    return [run for run in runs if not run.config.get("validate_share")]


def folders_inside(folder: Path) -> list[Path]:
    """The run folders of a comparison: runs/method/seed-0, with cases below case/."""
    found = (path.parent for case in ("", "*/") for path in folder.glob(f"{case}runs/*/seed-*/{CONFIG}"))
    return sorted(found)


def open_comparison(folder: Path, comparison: dict[str, Any]) -> Subject:
    """Read the runs of `fedframe compare`; those that have not started are left out."""
    groups = started_groups(folder, comparison)
    if not groups:
        raise DataError(f"{folder} holds no started run; the same 'fedframe compare' command goes on.")
    return Subject(groups, comparison, folder)


def open_cases(folder: Path, cases: dict[str, Any]) -> Subject:
    """The cases of a sweep side by side, under the names that the user gave them."""
    groups = tuple(
        Group(f"{group.label}, {case}", group.runs, case)
        for case, comparison in cases.items()
        for group in started_groups(folder, comparison)
    )
    if not groups:
        raise DataError(f"{folder} holds no started run; the same 'fedframe compare' command goes on.")
    return Subject(groups, folder=folder)


def started_groups(folder: Path, comparison: dict[str, Any]) -> tuple[Group, ...]:
    """The methods of a comparison, as far as any of their runs has started."""
    groups = []
    for method in comparison.get("methods", []):
        started = tuple(Run(folder / path) for path in method["runs"] if (folder / path / CONFIG).exists())
        if started:
            groups.append(Group(str(method.get("label") or method["name"]), started))
    return tuple(groups)


def group_runs(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Put runs together that differ in the seed alone, named by what distinguishes the groups.

    A repetition of the same run is not a second sample (intervals would be too narrow): it is a group of its own.
    """
    found: dict[tuple[str, int], list[Run]] = {}
    times: dict[tuple[str, int], int] = {}
    for run in runs:
        what = {name: value for name, value in run.config.items() if name not in NOT_THE_METHOD}
        text = json.dumps(what, sort_keys=True, default=str)
        times[text, run.seed] = times.get((text, run.seed), 0) + 1
        found.setdefault((text, times[text, run.seed]), []).append(run)
    members = list(found.values())
    labels = group_labels([group[0].config for group in members])
    labels = [
        label if labels.count(label) == 1 else f"{label} ({group[0].path.as_posix()})"
        for label, group in zip(labels, members, strict=True)
    ]
    return tuple(Group(label, tuple(group)) for label, group in zip(labels, members, strict=True))


def group_labels(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The method's name, and the settings in which methods of one name differ."""
    labels = []
    for config in configs:
        method = str(config.get("method"))
        rivals = [other for other in configs if other.get("method") == config.get("method")]
        names = dict.fromkeys(name for other in rivals for name in other if name not in NOT_THE_METHOD)
        differing = [name for name in names if any(other.get(name) != config.get(name) for other in rivals)]
        words = [setting_label(name, config, rivals) for name in differing]
        labels.append(", ".join([method, *words]))
    return labels


def setting_label(name: str, config: dict[str, Any], rivals: Sequence[dict[str, Any]]) -> str:
    """A setting with its value; splits that differ in nothing but Dirichlet's number are distinguished by alpha."""
    value = _short(config.get(name))
    found = ALPHA.search(value) if name == "partition" else None
    if found and len({ALPHA.sub("", _short(other.get(name))) for other in rivals}) == 1:
        return f"alpha={found[0]}"
    return f"{name}={value}"


def _short(value: object) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
