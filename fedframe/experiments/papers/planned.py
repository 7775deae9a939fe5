"""`fedframe paper --dry-run`: what would be run, as a summary or cell by cell; runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from fedframe.experiments.grid import outcome_of
from fedframe.experiments.papers.cells import Choice, PlacedCell, placed_cells
from fedframe.experiments.papers.library import load
from fedframe.experiments.papers.scale import local_steps
from fedframe.experiments.papers.tuning import RATE, TunedPlace, tuned_places
from fedframe.settings import Settings
from fedframe.util.text import plural

Values = dict[str, object]


def print_plan(name: str, choice: Choice, every_cell: bool = False) -> None:
    """Print what the table or figure would run: by data set, or with `every_cell` each cell with its settings."""
    table = load(name)
    chosen = placed_cells(table, choice)
    common = common_settings(chosen)
    print(f"{table.name}: {table.title} ({table.paper})")
    print(choice.scale.sentence(int(table.settings.get("rounds", 30))))
    if choice.tune:
        print(describe_tuning(tuned_places(table, choice)))
    print()
    if every_cell:
        print("Settings of all cells:")
        print(as_yaml(common))
        print_cells(chosen, common)
    else:
        print_summary(chosen, common)


def print_summary(chosen: Sequence[PlacedCell], common: Values) -> None:
    """Rows, columns, settings that are not the defaults, and runs by data set."""
    for what, names in (("row", [p.row.name for p in chosen]), ("column", [p.column for p in chosen])):
        found = list(dict.fromkeys(names))
        print(f"{plural(len(found), what)}: {', '.join(found)}")
    defaults = plain(Settings())
    own = {key: value for key, value in common.items() if value != defaults[key]}
    print("\nSettings of all cells that are not Fedframe's defaults:")
    print(as_yaml(own))
    cells = {place.cell.folder: place.cell for place in chosen}
    print(f"{'data':<18}{'runs':>6}{'finished':>10}  local steps left, about")
    for data in dict.fromkeys(cell.settings.data for cell in cells.values()):
        of_data = [cell for cell in cells.values() if cell.settings.data == data]
        left = [cell for cell in of_data if outcome_of(cell).state == "waiting"]
        steps = [local_steps(cell.settings) for cell in left]
        shown = "not known before the data are read" if None in steps else f"{sum(each or 0 for each in steps):,}"
        print(f"{data:<18}{len(of_data):>6}{len(of_data) - len(left):>10}  {shown}")
    print(f"\n{plural(len(cells), 'run')}. Every cell with its settings: add --cells.")


def print_cells(chosen: Sequence[PlacedCell], common: Values) -> None:
    """Each cell with its own settings, its folder and about how many local steps it takes."""
    total, unknown = 0, 0
    folders: set[Path] = set()
    for place in chosen:
        steps = local_steps(place.cell.settings)
        again = place.cell.folder in folders
        folders.add(place.cell.folder)
        state = "the same run as a cell above" if again else outcome_of(place.cell).state
        if not again:
            total, unknown = total + (steps or 0), unknown + (steps is None)
        own = {key: value for key, value in plain(place.cell.settings).items() if key not in common}
        print(f"{place.cell.name} ({state}) -> {place.cell.folder}")
        print(f"    {yaml.safe_dump(own, default_flow_style=True, width=10_000, sort_keys=False).strip()}")
        print(f"    about {steps:,} local steps" if steps is not None else "    local steps: not known before the data")
    more = f", and {unknown} whose steps are not known before their data are read" if unknown else ""
    print(f"\n{plural(len(folders), 'run')}, about {total:,} local steps{more}.")


def describe_tuning(places: Sequence[TunedPlace]) -> str:
    """Which learning rates are tried, and how many runs that takes."""
    cells = {cell.folder: cell for place in places for cell in place.cells.values()}
    steps = sum(local_steps(cell.settings) or 0 for cell in cells.values())
    rates = {", ".join(f"{rate:g}" for rate in place.candidates.sweep[RATE]): None for place in places}
    return (
        f"Tuning first: lr from {' or from '.join(rates)}, {plural(len(cells), 'run')} on held-out training data, "
        f"about {steps:,} local steps. The cells below have the table's own rates until others are chosen."
    )


def plain(settings: Settings) -> Values:
    """Settings as in a YAML file."""
    values: Values = settings.model_dump(mode="json")
    return values


def as_yaml(values: Values) -> str:
    """Settings as text."""
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def common_settings(chosen: Sequence[PlacedCell]) -> Values:
    """The settings that are the same in all cells."""
    all_values = [plain(place.cell.settings) for place in chosen]
    first = all_values[0]
    return {key: value for key, value in first.items() if all(values[key] == value for values in all_values)}
