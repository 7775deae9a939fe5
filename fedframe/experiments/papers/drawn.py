"""A figure with our measurements: its panels, its numbers as a document, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedframe.analysis.forms import Curves, Matrix, Measurement, Number, Points
from fedframe.errors import DataError
from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.grid.scores import Figure
from fedframe.experiments.papers.cells import Choice, PlacedCell
from fedframe.experiments.papers.figure import PaperFigure, column_name
from fedframe.experiments.papers.files import file_stem, number
from fedframe.experiments.papers.measured import CellReader, form_of, meaning_of, unit_of
from fedframe.experiments.papers.result import failures_of, plain_cells, seeds_of, size_of
from fedframe.experiments.papers.tuning import Chosen, notes_on
from fedframe.experiments.tables import DASH, Chapter, Document, Table, markdown
from fedframe.report.figures.drawing import write_figure
from fedframe.report.figures.panels import panel_figure
from fedframe.util.files import write_json, write_text

FACTORS = {"accuracy": 100.0, "bytes": 1e-6}  # what numbers are multiplied by to be shown
UNITS = {"accuracy": "accuracy (%)", "bytes": "megabytes"}


@dataclass(frozen=True)
class DrawnFigure:
    """A figure with our measurements; those that are no numbers are of the first seed's cells."""

    figure: PaperFigure
    choice: Choice
    placed_cells: Sequence[PlacedCell]
    outcomes: Mapping[Path, Outcome]
    missing: Sequence[str] = ()
    tuned: Sequence[Chosen] = ()

    @cached_property
    def measured(self) -> dict[tuple[str, str, str], list[Measurement]]:
        """By measurement, row and column: what was measured of each seed's cell that came to an end."""
        found: dict[tuple[str, str, str], list[Measurement]] = {}
        readers = {folder: CellReader(outcome, self.figure.groups) for folder, outcome in self.outcomes.items()}
        for name, measure in self.figure.measures.items():
            for place in self.placed_cells:
                values = found.setdefault((name, place.row.name, place.column), [])
                outcome = self.outcomes.get(place.cell.folder)
                once = form_of(measure) != "number"
                if outcome is None or outcome.state != "finished" or (once and values):
                    continue
                values.append(readers[place.cell.folder].read(measure))
        return found

    @property
    def rows(self) -> list[str]:
        """The chosen rows."""
        return [*dict.fromkeys(place.row.name for place in self.placed_cells)]

    @cached_property
    def places(self) -> dict[str, list[str]]:
        """The chosen points of each panel that has any."""
        columns = {place.column for place in self.placed_cells}
        found = {p: [x for x in self.figure.points if column_name(p, x) in columns] for p in self.figure.panels}
        return {panel: points for panel, points in found.items() if points}

    def number_at(self, name: str, row: str, column: str) -> Figure:
        """A number over seeds, as it is shown."""
        factor = FACTORS.get(unit_of(self.figure.measures[name]), 1.0)
        found = self.measured.get((name, row, column), [])
        values = [each.value for each in found if isinstance(each, Number) and each.value is not None]
        return Figure(tuple(factor * value for value in values))

    # -- the picture ---------------------------------------------------------------------------------------------------
    @cached_property
    def panels(self) -> list[dict[str, Any]]:
        """What is drawn, panel by panel; matrices of one measurement have one range of colours."""
        found: list[dict[str, Any]] = []
        for name, measure in self.figure.measures.items():
            form = form_of(measure)
            if form == "number":
                found += [self.sweep(name, panel) for panel in self.places]
                continue
            drawn = self.curves if form == "curves" else self.single
            panels = [each for row, panel in product(self.rows, self.places) for each in drawn(name, row, panel)]
            if form == "matrix":
                numbers = [value for panel in panels for cells in panel["cells"] for value in cells]
                for panel in panels:
                    panel["high"] = max(numbers) if panel["high"] is None else panel["high"]
            found += panels
        return found

    def sweep(self, name: str, panel: str) -> dict[str, Any]:
        """Numbers over the points, a line for each row that has any."""
        points = self.places[panel]
        rows = {row: [self.number_at(name, row, column_name(panel, point)) for point in points] for row in self.rows}
        lines = [
            {"name": row, "y": [each.mean for each in values], "spread": [each.spread for each in values]}
            for row, values in rows.items()
            if any(each.values for each in values)
        ]
        several = len(self.figure.measures) > 1
        return {
            "kind": "sweep",
            "title": ", ".join(text for text in (panel, name if several else "") if text) or name,
            "points": points,
            "numeric": self.figure.numeric,
            "log": self.figure.log,
            "bars": self.figure.bars,
            "x_label": self.figure.x,
            "y_label": UNITS.get(unit_of(self.figure.measures[name]), name),
            "lines": lines,
        }

    def curves(self, name: str, row: str, panel: str) -> Iterator[dict[str, Any]]:
        """Curves of a row, those of all points in one panel."""
        lines: list[dict[str, Any]] = []
        first: Curves | None = None
        for point in self.places[panel]:
            for found in self.measured[name, row, column_name(panel, point)]:
                assert isinstance(found, Curves)
                first = first or found
                lines += [
                    {**asdict(line), "name": ", ".join(t for t in (point, line.name) if t)} for line in found.lines
                ]
        if first is not None:
            axes = {"x_label": first.x_label, "y_label": first.y_label, "low": first.low, "high": first.high}
            yield {"kind": "curves", "title": self.heading(name, row, panel), "lines": lines, **axes}

    def single(self, name: str, row: str, panel: str) -> Iterator[dict[str, Any]]:
        """A matrix or points, a panel for each point of the figure."""
        for point in self.places[panel]:
            for found in self.measured[name, row, column_name(panel, point)]:
                kind = "matrix" if isinstance(found, Matrix) else "points"
                assert isinstance(found, Matrix | Points)
                yield {"kind": kind, "title": self.heading(name, row, panel, point), **asdict(found)}

    def heading(self, name: str, row: str, panel: str, point: str = "") -> str:
        """What distinguishes a panel from the others."""
        rows, names = self.rows, self.figure.measures
        parts = [row if len(rows) > 1 else "", panel, point, name if len(names) > 1 else ""]
        return ", ".join(text for text in parts if text) or name

    @property
    def across(self) -> int:
        """How many panels stand side by side: the rows of numbers are panels of one measurement."""
        count, measures = len(self.panels), len(self.figure.measures)
        each = count // measures if measures and count % measures == 0 else count
        return next((n for n in (each, each // 2) if 1 < n <= 4), 2 if count in (2, 4) else 3)

    # -- numbers -------------------------------------------------------------------------------------------------------
    @property
    def notes(self) -> list[str]:
        """What a reader has to know."""
        meanings = [f"{name}: {meaning_of(measure)}." for name, measure in self.figure.measures.items()]
        ours = f"{size_of(self.figure, self.choice)} Ours: {seeds_of(self.choice)}."
        known = [f"The paper's figure: {self.figure.shows}", *self.figure.notes]
        return [ours, *meanings, *known, *notes_on(self.tuned), *self.missing, *failures_of(self.outcomes)]

    def document(self) -> Document:
        """The numbers as tables: of pictures, the few that say what they show."""
        tables = [table for name in self.figure.measures for table in self.tables(name)]
        title = f"{self.figure.name}: {self.figure.title}"
        return Document(title, f"{self.figure.paper}.", [Chapter("", tables, self.notes)], is_command=False)

    def tables(self, name: str) -> Iterator[Table]:
        """The tables of a measurement."""
        columns = [column_name(panel, point) for panel, points in self.places.items() for point in points]
        if form_of(self.figure.measures[name]) == "number":
            unit = UNITS.get(unit_of(self.figure.measures[name]))
            shown = tuple((row, *(number_text(self.number_at(name, row, c)) for c in columns)) for row in self.rows)
            yield Table(f"{name}, {unit}" if unit else name, ("", *columns), shown)
            return
        rows = []
        heads: dict[str, None] = {}
        for row, column in product(self.rows, columns):
            for found in self.measured.get((name, row, column), []):
                assert not isinstance(found, Number)
                heads |= dict.fromkeys(found.facts)
                rows.append((", ".join(t for t in (row, column) if t != "all"), found.facts))
        if heads:
            lines = tuple((label, *(number(facts.get(head), 1.0) for head in heads)) for label, facts in rows)
            yield Table(name, ("", *heads), lines)

    def plain(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return {
            "figure": self.figure.name,
            "title": self.figure.title,
            "paper": self.figure.paper,
            "shows": self.figure.shows,
            "scale": self.choice.scale.share,
            "measures": {
                name: {"measure": measure, "meaning": meaning_of(measure)}
                for name, measure in self.figure.measures.items()
            },
            "panels": self.panels,
            "tuning": [each.plain() for each in self.tuned],
            "cells": plain_cells(self.placed_cells, self.outcomes, self.choice.out),
            "notes": self.notes,
        }


def number_text(figure: Figure) -> str:
    """A number with its deviation over seeds."""
    if figure.mean is None:
        return DASH
    return f"{figure.mean:.4g}" + (f" ± {figure.spread:.2g}" if figure.spread is not None else "")


def save_figure(result: DrawnFigure) -> list[Path]:
    """Write the picture (SVG and PNG) and its numbers (Markdown and JSON)."""
    if not result.panels or not any(panel.get("lines", True) for panel in result.panels):
        failed = " ".join(failures_of(result.outcomes))
        raise DataError(f"There is nothing to draw for {result.figure.name}: no cell was measured. {failed}")
    stem = file_stem(result.figure.name, result.choice)
    paths = [result.choice.out / f"{stem}.{kind}" for kind in ("svg", "png", "md", "json")]
    caption = f"{result.figure.paper}. {size_of(result.figure, result.choice)}"
    drawn = panel_figure(
        {"panels": result.panels, "title": result.figure.title, "caption": caption, "across": result.across}
    )
    for path in paths[:2]:
        write_figure(drawn, path)
    write_text(paths[2], markdown(result.document()))
    write_json(paths[3], result.plain())
    return paths
