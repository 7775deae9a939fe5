"""What a comparison runs: methods by seeds, as cells whose folders are named after what decides on their results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedframe.errors import SettingError, nearest
from fedframe.experiments.compare.address import Values, merge_layers, parts_of
from fedframe.experiments.compare.rows import Candidate, MethodRow
from fedframe.experiments.grid.cell import MACHINE, Cell
from fedframe.experiments.grid.naming import cell_at, recorded_inputs, slug
from fedframe.jobs.build import Net
from fedframe.jobs.gather import gather
from fedframe.jobs.inputs import InputFinder
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings

AS_THEY_ARE = Candidate()


@dataclass(frozen=True)
class Tuning:
    """How candidates are compared."""

    select: str  # the score they are chosen by; empty: what suits the methods
    share: float  # of each client's training data, held out as validation data
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What is run for one comparison: methods, seeds and settings."""

    rows: Sequence[MethodRow]
    seeds: tuple[int, ...]
    settings: Values  # of all methods; `set` is for those that have the part
    baseline: str
    target: float | None = None  # None: what the baseline reaches
    tuning: Tuning | None = None
    out: Path = Path("runs")
    data: object = None  # data and net that exist only in Python
    net: Net | None = None
    known_by: tuple[str, ...] = field(default=())  # what tells those from others
    case: str = ""  # what sets it apart from other comparisons of the same command
    scores: tuple[str, ...] = ()  # accuracies to report beside the usual ones

    def __post_init__(self) -> None:
        labels = [row.label for row in self.rows]
        if self.baseline not in labels:
            raise SettingError(f"baseline = {self.baseline!r} is not compared; {nearest(self.baseline, labels)}")
        if self.target is not None and not 0 < self.target < 1:
            raise SettingError(f"target = {self.target:g} is no accuracy between 0 and 1; use target = 0.8 for 80 %.")
        present = parts_of(*(row.method for row in self.rows))
        for part in self.settings.get("set") or {}:
            if part not in present:
                raise SettingError(f"--set {part}...: no method here has a part {part!r}; {nearest(part, present)}")
        for row in self.rows:  # what cannot work is refused before anything starts
            for candidate in row.candidates:
                checked = self.settings_of(row, candidate, self.seeds[0])
                for each in make_method(checked.method, checked.set).parts:
                    each.check_settings(checked)

    def settings_of(self, row: MethodRow, candidate: Candidate, seed: int, **more: Any) -> Settings:
        """All settings of a run; the row's beat those of all, and the candidate's beat the row's."""
        own = parts_of(row.method)
        parts = {part: values for part, values in (self.settings.get("set") or {}).items() if part in own}
        layers = [{**self.settings, "set": parts}, row.settings, candidate.settings, more]
        # Scores are kept; personal models of all methods and seeds would fill the disk.
        return gather({"save_personal": False, **merge_layers(*layers), "method": row.method, "seed": seed}, None)

    def cell(self, row: MethodRow, candidate: Candidate, seed: int) -> Cell:
        """A run on all the training data, scored on the test set."""
        return self.named_cell("runs", row, candidate, seed, self.settings_of(row, candidate, seed))

    def named_cell(self, kind: str, row: MethodRow, candidate: Candidate, seed: int, settings: Settings) -> Cell:
        """A cell with the name that people read, and the folder that its settings and inputs give it."""
        words = [f"{row.label} {candidate}".strip(), *([self.case] if self.case else []), f"seed {seed}"]
        cell = Cell(", ".join(words), settings, self.out, self.data, self.net)
        as_asked: Values = {name: value for name, value in self.settings.items() if name in ("data", "model")}
        as_asked["method"] = row.method
        return cell_at(self.out / kind, slug(row.label), cell, self._inputs, as_asked, *self.known_by)

    @cached_property
    def _inputs(self) -> InputFinder:
        return InputFinder(lambda: recorded_inputs(self.out))


def default_out(
    rows: Sequence[MethodRow], settings: Mapping[str, Any], known_by: Sequence[str], cases: Sequence[str] = ()
) -> Path:
    """The same folder for the same question, so that the same command goes on; more seeds join those that are there."""
    decides = {name: str(value) for name, value in settings.items() if name not in MACHINE | {"seed"}}
    # The name and the label that existing folders are made from.
    named = [replace(row, label=row.old_label or row.label) for row in rows]
    shown = [repr(row).replace("MethodRow(", "Row(", 1) for row in named]
    text = json.dumps([shown, decides, *known_by, *cases], sort_keys=True)
    code = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    data = str(settings.get("data", Settings.model_fields["data"].default)).partition("?")[0]
    return Path("runs", f"compare-{slug(Path(data).stem, 30)}-{code}")
