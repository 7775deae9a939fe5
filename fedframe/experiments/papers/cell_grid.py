"""Cells by rows and columns: what a table and a figure of a paper have in common.

A file names them once. A cell's settings are, the later beating the earlier: the method's own, the file's, the
column's, the row's, and those of the row in that column.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedframe.errors import SettingError, nearest
from fedframe.metrics.accuracy import CUTS
from fedframe.settings import Settings

Values = dict[str, Any]
RATES = (0.01, 0.03, 0.1, 0.3)  # learning rates that --tune tries unless a file or a row names others
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


class GridRow(Strict):
    """A row of cells: a method and how it is set."""

    name: str
    method: str
    settings: Values = Field(default_factory=dict)
    columns: dict[str, Values] = Field(default_factory=dict)  # settings that differ in a column
    rates: CandidateRates | None = None  # candidates of --tune for this row; none of them: its rate is fixed


class CellGrid(Strict):
    """Rows and columns of cells, which share settings."""

    name: str
    title: str
    paper: str
    rates: CandidateRates = RATES  # candidates of --tune
    groups: tuple[float, float] = CUTS  # many, medium and few: where the classes are cut
    settings: Values
    columns: dict[str, Values]
    rows: Sequence[GridRow]
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
    def _names_are_distinct(self) -> CellGrid:
        names = [row.name for row in self.rows]
        for name in [*names, *self.columns]:
            if "," in name:
                raise SettingError(f"The name {name!r} has a comma, which separates names in --rows and --columns.")
        if len(set(names)) < len(names):
            raise SettingError("Two rows have the same name; each needs one of its own.")
        for row in self.rows:
            for name in row.columns:
                if name not in self.columns:
                    raise SettingError(f"There is no column {name!r}; {nearest(name, self.columns)}")
        return self

    def candidate_rates(self, row: GridRow, column: str) -> tuple[float, ...]:
        """The learning rates that --tune chooses from; none where the row has one of its own."""
        if row.rates is not None:
            return row.rates
        return () if "lr" in row.settings or "lr" in row.columns.get(column, {}) else self.rates

    def scored(self, row: GridRow) -> set[str]:
        """Which scores of ours (generic, personal, ...) a row's numbers are: those decide how it is tuned."""
        raise NotImplementedError

    @property
    def data(self) -> list[str]:
        """The data sets that the cells need."""
        named = [{**self.settings, **values}.get("data", "digits") for values in self.columns.values()]
        return [*dict.fromkeys(named)]


def _all_settings(given: Any) -> Sequence[Values]:
    """The settings in a field: those of the file, of its columns or of its rows."""
    if isinstance(given, list):
        return [values for row in given for values in (row.settings, *row.columns.values())]
    return [*given.values()] if given and all(isinstance(value, dict) for value in given.values()) else [given]


Made = TypeVar("Made", bound=CellGrid)


def file_names() -> list[str]:
    """The files that come along, without their ending: tables end in their number, figures do not."""
    return [path.name.removesuffix(".yaml") for path in files(__package__).iterdir() if path.name.endswith(".yaml")]


def file_text(name: str) -> tuple[str, str, str]:
    """A file that comes along, or one of the user's own: the name of what it holds, its text, and where that is."""
    own = Path(name)
    if own.suffix in (".yaml", ".yml"):
        if not own.is_file():
            raise SettingError(f"There is no file {own}; 'fedframe paper' lists what comes along.")
        return own.stem, own.read_text(), str(own)
    return name, (files(__package__) / f"{name}.yaml").read_text(), f"{name}.yaml"


def read_grid(kind: type[Made], name: str, text: str, where: str, keys: str) -> Made:
    """A table or figure from the text of its file; an error is one sentence."""
    try:
        content = yaml.safe_load(text)
        if not isinstance(content, dict):
            raise SettingError(f"{where} must hold {keys}.")
        return kind(name=name, **content)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise SettingError(f"{where}: {place}: {problem['msg'].removeprefix('Value error, ')}.") from error
    except (yaml.YAMLError, TypeError) as error:
        raise SettingError(f"{where} cannot be read: {' '.join(str(error).split())}.") from error
