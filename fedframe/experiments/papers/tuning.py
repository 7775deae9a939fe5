"""`fedframe paper --tune`: the learning rate of every row and column, chosen on held-out training data.

A share of what each client trains on is held out, every candidate trains on the rest and is scored on that share; the
test sets are not seen. What the paper fixes for a row stays fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedframe.errors import RunError, SettingError
from fedframe.experiments.compare.address import Address
from fedframe.experiments.compare.plan import Tuning
from fedframe.experiments.compare.request import SHARE
from fedframe.experiments.compare.rows import Candidate, MethodRow
from fedframe.experiments.compare.tuning import GENERIC, PERSONAL, Tuned, explain_select, score_trials
from fedframe.experiments.grid.cell import Cell, Outcome
from fedframe.experiments.papers.cell_grid import CellGrid, GridRow
from fedframe.experiments.papers.cells import CellMaker, Choice, Rates
from fedframe.methods.recipes import make_method

RATE = Address("lr")
FIRST_SEED = 0  # the seed that candidates are run with


@dataclass(frozen=True)
class TunedPlace:
    """The candidates for a row in a column."""

    row: GridRow
    column: str
    tuning: Tuning
    candidates: MethodRow
    cells: Mapping[tuple[str, Candidate, int], Cell]


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a row in a column, and why."""

    row: str
    column: str
    rate: float | None  # None: the table's own, because none of the candidates came to an end
    select: str
    trials: Sequence[dict[str, Any]] = ()
    reason: str = ""  # why there is no rate

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "row": self.row,
            "column": self.column,
            "lr": self.rate,
            "select": self.select,
            "trials": list(self.trials),
            "reason": self.reason,
        }


def tuned_places(table: CellGrid, choice: Choice) -> list[TunedPlace]:
    """The chosen rows and columns whose rate is open, each with a cell per candidate."""
    maker = CellMaker(table, choice)
    places = [place_of(maker, row, column) for row, column in maker.places if table.candidate_rates(row, column)]
    if not places:
        raise SettingError(f"{table.name} fixes the learning rates of all chosen rows; leave --tune out.")
    return places


def place_of(maker: CellMaker, row: GridRow, column: str) -> TunedPlace:
    """A row in a column with its candidates."""
    table, method = maker.table, row.method
    rates = table.candidate_rates(row, column)
    personal = table.scored(row) == {"personal"} or not make_method(method, {}).shares_a_model
    tuning = Tuning(PERSONAL if personal else GENERIC, SHARE, (FIRST_SEED,))
    candidates = MethodRow(method, f"{row.name}, {column}", sweep={RATE: rates})
    held_out = {"validate_share": tuning.share, "personal": personal}
    cells = {
        (candidates.label, candidate, FIRST_SEED): maker.make(
            row, column, FIRST_SEED, {**candidate.settings, **held_out}, f"tuning {candidate}, "
        )
        for candidate in candidates.candidates
    }
    return TunedPlace(row, column, tuning, candidates, cells)


def choose(place: TunedPlace, outcomes: Mapping[Path, Outcome]) -> Chosen:
    """The best rate of a row in a column; where none came to an end, the table's own stays."""
    try:
        tuned: Tuned = score_trials([place.candidates], place.cells, place.tuning, outcomes)
    except RunError as error:
        return Chosen(place.row.name, place.column, None, place.tuning.select, reason=str(error))
    best = tuned.chosen(place.candidates)
    trials = [
        {"lr": trial["candidate"]["lr"], "mean": trial["mean"], "states": trial["states"]}
        for trial in tuned.plain()["trials"]
    ]
    if best is None:
        reason = "every candidate diverged"
        return Chosen(place.row.name, place.column, None, place.tuning.select, trials, reason)
    return Chosen(place.row.name, place.column, float(best.settings["lr"]), place.tuning.select, trials)


def chosen_rates(chosen: Sequence[Chosen]) -> Rates:
    """The rates by row and column."""
    return {(each.row, each.column): each.rate for each in chosen if each.rate is not None}


def notes_on(chosen: Sequence[Chosen]) -> list[str]:
    """Sentences under the table: which rates were chosen, by what, and where none could be."""
    if not chosen:
        return []
    selects = [*dict.fromkeys(each.select for each in chosen)]
    how = "; ".join(explain_select(select) for select in selects)
    rows = {each.row: [other for other in chosen if other.row == each.row] for each in chosen}
    shown = "; ".join(f"{row}: {rates_of(found)}" for row, found in rows.items() if rates_of(found))
    notes = [
        f"Learning rates were chosen on {100 * SHARE:g} % of the clients' training data, held out, with one seed "
        f"({how}). {shown}."
    ]
    for each in (each for each in chosen if each.rate is None):
        why = each.reason.rstrip(".")
        notes.append(f"{each.row}, {each.column}: no rate could be chosen, and the table's own is used: {why}.")
    return notes


def rates_of(chosen: Sequence[Chosen]) -> str:
    """The rates of a row: one number where they are all the same."""
    known = [each for each in chosen if each.rate is not None]
    if len({each.rate for each in known}) == 1:
        return f"{known[0].rate:g}"
    return ", ".join(f"{each.rate:g} ({each.column})" for each in known)
