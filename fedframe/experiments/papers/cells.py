"""From a table or a figure to the cells that it takes."""

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
from fedframe.experiments.papers.cell_grid import CellGrid, GridRow
from fedframe.experiments.papers.scale import Scale
from fedframe.jobs.gather import gather, named_settings
from fedframe.jobs.inputs import InputFinder
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings, merge_part_settings
from fedframe.util.allowed_code import allow_typed

PartSettings = Mapping[str, Mapping[str, Any]]
Rates = Mapping[tuple[str, str], float]  # learning rates by row and column


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
    tune: bool = False  # choose learning rates on held-out training data first


@dataclass(frozen=True)
class PlacedCell:
    """A cell and where in the table it belongs."""

    row: GridRow
    column: str
    seed: int
    cell: Cell


class CellMaker:
    """Makes the cells of the chosen rows and columns; settings of parts that no chosen row has are refused."""

    def __init__(self, table: CellGrid, choice: Choice) -> None:
        names = chosen([row.name for row in table.rows], choice.rows, "row")
        columns = chosen([*table.columns], choice.columns, "column")
        rows = [row for row in table.rows if row.name in names]
        self.table, self.places = table, [(row, column) for row in rows for column in columns]
        allow_typed(*(row.method for row in rows))  # a table of your own is what you would type
        self.choice = replace(choice, set=named_settings(choice.set, *(row.method for row in rows)))
        self.finder = InputFinder(lambda: recorded_inputs(choice.out))
        present = {part.name for row in rows for part in make_method(row.method, {}).parts}
        for part in self.choice.set:
            if part not in present:
                raise SettingError(f"--set {part}...: no chosen row of {table.name} has a part {part!r}; leave it out.")

    def make(self, row: GridRow, column: str, seed: int, more: Mapping[str, Any], prefix: str = "") -> Cell:
        """A run of a row in a column; `more` beats the table's settings, and the prefix is how its name begins."""
        asked = {**asked_settings(self.table, row, column, seed, self.choice), **more}
        name = f"{prefix}{row.name}, {column}" + (f", seed {seed}" if self.choice.seeds > 1 else "")
        allow_typed(asked.get("model"))
        cell = Cell(name, gather(asked, None), self.choice.out)
        as_asked = {key: value for key, value in asked.items() if key in ("method", "data", "model")}
        return cell_at(self.choice.out / "cells", stem(cell.settings, asked["method"]), cell, self.finder, as_asked)


def placed_cells(table: CellGrid, choice: Choice, rates: Rates | None = None) -> list[PlacedCell]:
    """The cells of the chosen rows and columns, with the learning rates that were chosen for them."""
    if choice.seeds < 1:
        raise SettingError(f"seeds = {choice.seeds}: at least one run is needed for a cell; use seeds = 3.")
    maker = CellMaker(table, choice)
    found = []
    for row, column in maker.places:
        rate = (rates or {}).get((row.name, column))
        more = {} if rate is None else {"lr": rate}
        found += [PlacedCell(row, column, seed, maker.make(row, column, seed, more)) for seed in range(choice.seeds)]
    return found


def chosen(names: Sequence[str], wanted: Iterable[str], what: str) -> list[str]:
    """Those of the names that are wanted; * stands for anything, and case does not matter."""
    patterns = [pattern.strip() for pattern in wanted]
    for pattern in patterns:
        if not any(fnmatch(name.casefold(), pattern.casefold()) for name in names):
            raise SettingError(f"There is no {what} {pattern!r}; {nearest(pattern, names)}")
    return [name for name in names if not patterns or any(fnmatch(name.casefold(), p.casefold()) for p in patterns)]


def cell_settings(table: CellGrid, row: GridRow, column: str, seed: int, choice: Choice) -> Settings:
    """All settings of a cell."""
    return gather(asked_settings(table, row, column, seed, choice), None)


def asked_settings(table: CellGrid, row: GridRow, column: str, seed: int, choice: Choice) -> dict[str, Any]:
    """The settings of a cell that the table and the choice name; --set reaches the rows that have the part."""
    layers = [table.settings, table.columns[column], row.settings, row.columns.get(column, {})]
    values: dict[str, Any] = {"method": row.method, "seed": seed}
    for layer in layers:
        values |= layer
    parts = merge_part_settings(*(layer.get("set") or {} for layer in layers))
    own = {part.name for part in make_method(values["method"], parts).parts}
    asked = {part: given for part, given in choice.set.items() if part in own}
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
