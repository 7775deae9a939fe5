"""A table of a paper: what its rows and columns are as settings of ours, and the numbers that are printed there.

A file names them once. A cell's settings are, the later beating the earlier: the method's own, the table's, the
column's, the row's, and those of the row in that column.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedframe.errors import SettingError, nearest
from fedframe.experiments.grid.scores import check_score, is_accuracy
from fedframe.metrics.accuracy import CUTS
from fedframe.settings import Settings

Values = dict[str, Any]
RATES = (0.01, 0.03, 0.1, 0.3)  # learning rates that --tune tries unless a table or a row names others
NOT_HERE = {"seed", "data_share"}  # said by --seeds and by --scale


def _comparable(rates: tuple[float, ...]) -> tuple[float, ...]:
    """Candidates among which something can be chosen, or none."""
    if rates and (len(set(rates)) < max(2, len(rates)) or min(rates) <= 0):
        raise SettingError(f"rates = {[*rates]}: a choice is between two or more above 0; use rates = [0.03, 0.1].")
    return rates


CandidateRates = Annotated[tuple[float, ...], AfterValidator(_comparable)]


class Strict(BaseModel):
    """Unknown names are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TableRow(Strict):
    """A line of the table: a method, how it is set, and its printed numbers."""

    name: str
    method: str
    settings: Values = Field(default_factory=dict)
    columns: dict[str, Values] = Field(default_factory=dict)  # settings that differ in a column
    scores: dict[str, str] = Field(default_factory=dict)  # where this row's number is another score of ours
    rates: CandidateRates | None = None  # candidates of --tune for this row; none of them: its rate is fixed
    paper: list[float | None]  # from left to right as printed; null: absent or unreadable


class PaperTable(Strict):
    """A table of a paper."""

    name: str
    title: str
    paper: str
    unit: Literal["percent", "share", "count", "megabytes"]  # of the printed numbers
    scores: dict[str, str]  # name in the paper -> score of ours
    rates: CandidateRates = RATES  # candidates of --tune
    groups: tuple[float, float] = CUTS  # many, medium and few: where the classes are cut
    settings: Values
    columns: dict[str, Values]
    rows: list[TableRow]
    notes: list[str] = Field(default_factory=list)

    @field_validator("settings", "columns", "rows")
    @classmethod
    def _settings_exist(cls, given: Any) -> Any:
        for values in _all_settings(given):
            for name in values:
                if name not in Settings.model_fields:
                    raise SettingError(f"There is no setting {name!r}; {nearest(str(name), Settings.model_fields)}")
                if name in NOT_HERE:
                    raise SettingError(f"{name!r} does not belong into a table's settings; leave it out.")
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for score in [*self.scores.values(), *(score for row in self.rows for score in row.scores.values())]:
            check_score(score)
            other = ("megabytes",) if score.startswith("bytes") else ("count",)
            if self.unit not in (("percent", "share") if is_accuracy(score) else other):
                raise SettingError(f"The score {score!r} is not counted in {self.unit}.")
        names = [row.name for row in self.rows]
        for name in [*names, *self.columns]:
            if "," in name:
                raise SettingError(f"The name {name!r} has a comma, which separates names in --rows and --columns.")
        if len(set(names)) < len(names):
            raise SettingError("Two rows have the same name; each needs one of its own.")
        wanted = len(self.columns) * len(self.scores)
        for row in self.rows:
            if len(row.paper) != wanted:
                raise SettingError(f"Row {row.name!r} has {len(row.paper)} numbers; the table has {wanted} in a line.")
            for name in row.columns:
                if name not in self.columns:
                    raise SettingError(f"There is no column {name!r}; {nearest(name, self.columns)}")
            for name in row.scores:
                if name not in self.scores:
                    raise SettingError(f"There is no score {name!r}; {nearest(name, self.scores)}")
        return self

    def printed(self, row: TableRow, column: str, score: str) -> float | None:
        """The paper's number, accuracies as shares of 1, and megabytes as bytes."""
        place = [*self.columns].index(column) * len(self.scores) + [*self.scores].index(score)
        number = row.paper[place]
        divisor = {"percent": 100, "megabytes": 1e-6}.get(self.unit)
        return number / divisor if number is not None and divisor is not None else number

    @property
    def shown_factor(self) -> float:
        """What our scores are multiplied by to be shown: accuracies in percent, bytes in megabytes."""
        return {"count": 1.0, "megabytes": 1e-6}.get(self.unit, 100.0)

    def candidate_rates(self, row: TableRow, column: str) -> tuple[float, ...]:
        """The learning rates that --tune chooses from; none where the row has one of its own."""
        if row.rates is not None:
            return row.rates
        return () if "lr" in row.settings or "lr" in row.columns.get(column, {}) else self.rates

    def score_of(self, row: TableRow, score: str) -> str:
        """Our score behind a number of the paper."""
        return row.scores.get(score, self.scores[score])

    @property
    def data(self) -> list[str]:
        """The data sets that the table needs."""
        named = [{**self.settings, **values}.get("data", "digits") for values in self.columns.values()]
        return [*dict.fromkeys(named)]


def _all_settings(given: Any) -> Sequence[Values]:
    """The settings in a field of a table: those of the table, of its columns or of its rows."""
    if isinstance(given, list):
        return [values for row in given for values in (row.settings, *row.columns.values())]
    return [*given.values()] if given and all(isinstance(value, dict) for value in given.values()) else [given]


def table_names() -> list[str]:
    """The tables that come along, in the order of papers and numbers."""
    found = [path.name.removesuffix(".yaml") for path in files(__package__).iterdir() if path.name.endswith(".yaml")]
    return sorted(found, key=lambda name: (name.rpartition("-")[0], int(name.rpartition("-")[2])))


def load_table(name: str) -> PaperTable:
    """A table that comes along, by name, or a file of one's own."""
    own = Path(name)
    if own.suffix in (".yaml", ".yml"):
        if not own.is_file():
            raise SettingError(f"There is no file {own}; 'fedframe paper' lists the tables that come along.")
        return read_table(own.stem, own.read_text(), str(own))
    if name not in table_names():
        raise SettingError(f"There is no table {name!r}; {nearest(name, table_names())}")
    return read_table(name, (files(__package__) / f"{name}.yaml").read_text(), f"{name}.yaml")


def read_table(name: str, text: str, where: str) -> PaperTable:
    """A table from the text of its file; what is wrong with it is said in one sentence."""
    try:
        content = yaml.safe_load(text)
        if not isinstance(content, dict):
            raise SettingError(f"{where} must hold a table: title, paper, scores, settings, columns and rows.")
        return PaperTable(name=name, **content)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise SettingError(f"{where}: {place}: {problem['msg'].removeprefix('Value error, ')}.") from error
    except (yaml.YAMLError, TypeError) as error:
        raise SettingError(f"{where} cannot be read: {' '.join(str(error).split())}.") from error
