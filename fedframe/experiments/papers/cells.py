"""From a table to the cells that fill it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fedframe.data.files import data_root
from fedframe.data.load import read_spec
from fedframe.errors import SettingError, nearest
from fedframe.experiments.grid.cell import Cell
from fedframe.experiments.grid.naming import cell_at, recorded_inputs
from fedframe.experiments.papers.scale import Scale
from fedframe.experiments.papers.table import PaperTable, TableRow
from fedframe.jobs.gather import gather, named_settings
from fedframe.jobs.inputs import InputFinder
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings, merge_part_settings

PartSettings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Choice:
    """What of a table is run, and how."""

    scale: Scale = field(default_factory=Scale)
    seeds: int = 1
    rows: Sequence[str] = ()  # names or patterns; none: all
    columns: Sequence[str] = ()
    set: PartSettings = field(default_factory=dict)  # settings of parts, for the rows that have them
    machine: Mapping[str, Any] = field(default_factory=dict)  # device, data_dir
    out: Path = Path("runs", "papers")


@dataclass(frozen=True)
class PlacedCell:
    """A cell and where in the table it belongs."""

    row: TableRow
    column: str
    seed: int
    cell: Cell


def placed_cells(table: PaperTable, choice: Choice) -> list[PlacedCell]:
    """The cells of the chosen rows and columns."""
    if choice.seeds < 1:
        raise SettingError(f"seeds = {choice.seeds}: at least one run is needed for a cell; use seeds = 3.")
    rows = chosen([row.name for row in table.rows], choice.rows, "row")
    columns = chosen([*table.columns], choice.columns, "column")
    methods = [row.method for row in table.rows if row.name in rows]
    choice = replace(choice, set=named_settings(choice.set, *methods))
    finder = InputFinder(lambda: recorded_inputs(choice.out))
    used: set[str] = set()
    found = []
    for row in (row for row in table.rows if row.name in rows):
        for column in columns:
            for seed in range(choice.seeds):
                asked = asked_settings(table, row, column, seed, choice, used)
                name = f"{row.name}, {column}" + (f", seed {seed}" if choice.seeds > 1 else "")
                cell = Cell(name, gather(asked, None), choice.out)
                as_asked = {key: value for key, value in asked.items() if key in ("method", "data", "model")}
                placed = cell_at(choice.out / "cells", stem(cell.settings, asked["method"]), cell, finder, as_asked)
                found.append(PlacedCell(row, column, seed, placed))
    for part in choice.set:
        if part not in used:
            raise SettingError(f"--set {part}...: no chosen row of {table.name} has a part {part!r}; leave it out.")
    return found


def chosen(names: Sequence[str], wanted: Iterable[str], what: str) -> list[str]:
    """Those of the names that are wanted; * stands for anything, and case does not matter."""
    patterns = [pattern.strip() for pattern in wanted]
    for pattern in patterns:
        if not any(fnmatch(name.casefold(), pattern.casefold()) for name in names):
            raise SettingError(f"There is no {what} {pattern!r}; {nearest(pattern, names)}")
    return [name for name in names if not patterns or any(fnmatch(name.casefold(), p.casefold()) for p in patterns)]


def cell_settings(table: PaperTable, row: TableRow, column: str, seed: int, choice: Choice) -> Settings:
    """All settings of a cell."""
    return gather(asked_settings(table, row, column, seed, choice, set()), None)


def asked_settings(
    table: PaperTable, row: TableRow, column: str, seed: int, choice: Choice, used: set[str]
) -> dict[str, Any]:
    """The settings of a cell that the table and the choice name; `used` collects the parts that --set has reached."""
    layers = [table.settings, table.columns[column], row.settings, row.columns.get(column, {})]
    values: dict[str, Any] = {"method": row.method, "seed": seed}
    for layer in layers:
        values |= layer
    parts = merge_part_settings(*(layer.get("set") or {} for layer in layers))
    own = {part.name for part in make_method(values["method"], parts).parts}
    asked = {part: given for part, given in choice.set.items() if part in own}
    used.update(asked)
    values["set"] = merge_part_settings(parts, asked)
    values = {**choice.scale.apply(values), **choice.machine}
    if "data" in values:
        values["data"] = below_data_folder(str(values["data"]), values.get("data_dir"))
    # A hundred cells with twenty personal models each would fill the disk; their scores are kept.
    return {"save_personal": False, **values}


def below_data_folder(spec: str, data_dir: str | None) -> str:
    """A table's list of images lies in the data folder, wherever that is on this machine."""
    kind, colon, path = spec.partition(":")
    if not colon or Path(path).expanduser().is_absolute():
        return spec
    parsed = read_spec(spec, Path(data_dir) if data_dir else None)
    return f"{kind}:{data_root(parsed).absolute() / path}"


def stem(settings: Settings, method: str) -> str:
    """How the name of a cell's folder begins: tables that share a run share its folder."""
    data = Path(settings.data.partition("?")[0]).stem
    return re.sub(r"[^\w.+-]+", "-", f"{method}-{data}-{settings.partition}")
