"""`fedframe paper`: list tables and figures, run one, and show what came out."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedframe.data.load import load_raw, read_spec
from fedframe.errors import FedframeError, RunError
from fedframe.experiments.grid import choose_grid_display, outcome_of, run_cells
from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.grid.failures import refuse_failures
from fedframe.experiments.papers.cell_grid import CellGrid
from fedframe.experiments.papers.cells import Choice, PlacedCell, placed_cells
from fedframe.experiments.papers.drawn import DrawnFigure, save_figure
from fedframe.experiments.papers.figure import PaperFigure, load_figure
from fedframe.experiments.papers.files import make_document, save
from fedframe.experiments.papers.library import all_names, load
from fedframe.experiments.papers.result import FilledTable
from fedframe.experiments.papers.table import PaperTable, load_table
from fedframe.experiments.papers.tuning import Chosen, choose, chosen_rates, tuned_places
from fedframe.experiments.tables import Document, show
from fedframe.jobs.devices import check_device, resolve_device
from fedframe.settings import Settings
from fedframe.util.text import plural


def print_tables() -> None:
    """List the tables and figures that come along."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("table or figure", "cells", "what it shows", "data"):
        grid.add_column(head, no_wrap=head in ("table or figure", "cells"))
    for name in all_names():
        found = load(name)
        size = f"{len(found.rows)} x {len(found.columns)}"
        grid.add_row(name, size, found.title, ", ".join(map(short, found.data)))
    console = Console()
    console.print(grid)
    console.print(
        "Run one: fedframe paper fedrane-1 --scale 0.05 (with --dry-run it only prints what it would do).",
        highlight=False,
    )


def short(data: str) -> str:
    """A data set's name; of a list of images, its folder's."""
    _, colon, path = data.partition(":")
    return Path(path.partition("?")[0]).parent.name if colon else data


@dataclass(frozen=True)
class FinishedCells:
    """The cells of a table or figure after they were run."""

    placed: list[PlacedCell]
    outcomes: dict[Path, Outcome]
    missing: list[str]
    tuned: list[Chosen]


def run_grid(grid: CellGrid, choice: Choice, cores: int | None, progress: bool) -> FinishedCells:
    """Run what is left of the cells of a table or figure."""
    chosen = placed_cells(grid, choice)
    check_device(resolve_device(str(choice.machine.get("device", "cpu"))), several=True)
    absent, sentences = missing_data(chosen)
    if progress:
        for text in sentences:
            print(text, flush=True)
    if all(place.cell.settings.data in absent for place in chosen):
        raise RunError(f"No data of {grid.name} are available, so nothing can be run. {' '.join(sentences)}")
    tuned = tune(grid, choice, absent, cores, progress) if choice.tune else []
    if tuned:
        chosen = placed_cells(grid, choice, chosen_rates(tuned))
    cells = [place.cell for place in chosen if place.cell.settings.data not in absent]
    outcomes = run_cells(cells, choose_grid_display(progress), cores=cores)
    return FinishedCells(chosen, outcomes, sentences, tuned)


def fill(name: str, choice: Choice, *, cores: int | None = None, progress: bool = True) -> FilledTable:
    """Run what is left of a table's cells, save the table and show it."""
    return fill_table(load_table(name), choice, cores, progress)


def fill_table(table: PaperTable, choice: Choice, cores: int | None, progress: bool) -> FilledTable:
    """The same for a table that was read."""
    ran = run_grid(table, choice, cores, progress)
    result = FilledTable(table, choice, ran.placed, ran.outcomes, ran.missing, ran.tuned)
    present(make_document(result), save(result), progress)
    refuse_if_all_failed(ran)
    return result


def draw(name: str, choice: Choice, *, cores: int | None = None, progress: bool = True) -> DrawnFigure:
    """Run what is left of a figure's cells, measure them, save picture and numbers, and show the numbers."""
    return draw_figure(load_figure(name), choice, cores, progress)


def draw_figure(figure: PaperFigure, choice: Choice, cores: int | None, progress: bool) -> DrawnFigure:
    """The same for a figure that was read."""
    ran = run_grid(figure, choice, cores, progress)
    refuse_if_all_failed(ran)
    result = DrawnFigure(figure, choice, ran.placed, ran.outcomes, ran.missing, ran.tuned)
    present(result.document(), save_figure(result), progress)
    return result


def fill_or_draw(
    name: str, choice: Choice, *, cores: int | None = None, progress: bool = True
) -> FilledTable | DrawnFigure:
    """A table is filled, a figure drawn."""
    found = load(name)
    if isinstance(found, PaperFigure):
        return draw_figure(found, choice, cores, progress)
    return fill_table(found, choice, cores, progress)


def present(document: Document, paths: Sequence[Path], progress: bool) -> None:
    """Show what came out, and where it is."""
    if progress:
        show(document)
        print(f"Saved: {', '.join(map(str, paths))}")


def refuse_if_all_failed(ran: FinishedCells) -> None:
    """Cells of which not one came to an end are an error."""
    if all(outcome.state == "failed" for outcome in ran.outcomes.values()):
        refuse_failures([*ran.outcomes.values()], len(ran.outcomes))


def tune(table: CellGrid, choice: Choice, absent: Container[str], cores: int | None, progress: bool) -> list[Chosen]:
    """Run every candidate on held-out training data and choose; what is finished is not run again."""
    places = tuned_places(table, choice)
    cells = [cell for place in places for cell in place.cells.values() if cell.settings.data not in absent]
    if progress:
        print(f"Tuning: {plural(len(cells), 'run')} on held-out training data, the test data put aside.", flush=True)
    outcomes = run_cells(cells, choose_grid_display(progress), cores=cores)
    return [choose(place, outcomes) for place in places if all(c.folder in outcomes for c in place.cells.values())]


def missing_data(chosen: Sequence[PlacedCell]) -> tuple[set[str], list[str]]:
    """Data sets that are neither here nor to be downloaded, and a sentence for the columns that need them.

    Each set is read once before anything starts: cells side by side must not download the same file.
    """
    columns: dict[str, dict[str, None]] = {}
    needed: dict[str, Settings] = {}
    for place in chosen:
        settings = place.cell.settings
        columns.setdefault(settings.data, {})[place.column] = None
        if outcome_of(place.cell).state == "waiting":
            needed.setdefault(settings.data, settings)
    absent, sentences = set(), []
    for data, settings in needed.items():
        try:
            load_raw(read_spec(data, Path(settings.data_dir) if settings.data_dir else None))
        except FedframeError as error:
            absent.add(data)
            sentences.append(f"Left out, {'; '.join(columns[data])}: {error}")
    return absent, sentences
