"""The columns of a table: what each is, what is doubtful about it, and the option that settles it.

Real tables have dates, ids, `<0.5` among numbers and decimal commas. Read as texts, each of their values would become
an input of its own, and an id would be learnt by heart; so such columns are refused until an option says what they are.
Options stand in the data's text, `csv:my.csv?drop=name&numeric=crp`, or on the command line, `--drop name`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from fedframe.errors import DataError, SettingError, nearest

Values = npt.NDArray[Any]
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
OPTIONS = ("drop", "numeric", "categorical", "date", "encoding", "decimal")
MOST_VALUES = 100  # of a text column: each becomes an input
FEW_CODES = 10  # different values of a column of codes, some of which are numbers
FEW_ROWS = 20  # with fewer, values that are all different mean nothing
DATE_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y", "%Y/%m/%d",
                "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y%m%d")  # fmt: skip
DAY = 86400.0
ID_NAME = re.compile(r"(^|[_\s.-])(id|nr|no|number|mrn|uuid|pid|index|key)$|[a-z]I[Dd]$", re.IGNORECASE)
BOUND = re.compile(r"^\s*[<>≤≥~=]+\s*")  # laboratories write <0.5 for what they cannot measure
COMMA = re.compile(r"^[-+]?\d+,\d+$")


@dataclass(frozen=True)
class TableReading:
    """How a table is read, as its options say."""

    drop: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    date: Mapping[str, str] | None = None  # format by column, "" to find it
    encoding: str = "utf-8-sig"
    decimal: str = "."

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TableReading:
        """From the options of a data spec."""
        named = {key: split(options.get(key, "")) for key in ("drop", "numeric", "categorical", "date")}
        encoding, decimal = options.get("encoding", "utf-8-sig"), options.get("decimal", ".")
        if decimal not in (".", ","):
            raise SettingError(f"decimal = {decimal!r} is no decimal sign; use decimal = ',' or '.'.")
        try:
            "".encode(encoding)
        except LookupError:
            raise SettingError(f"encoding = {encoding!r} is unknown; use encoding = latin-1 or utf-8.") from None
        dates = {text.partition(":")[0].strip(): text.partition(":")[2].strip() for text in named.pop("date")}
        twice = [
            name for name in {*dates, *sum(named.values(), ())} if sum(map(has(name), (*named.values(), dates))) > 1
        ]
        if twice:
            raise SettingError(f"The column {min(twice)!r} stands in several of drop, numeric, categorical and date.")
        return cls(**named, date=dates, encoding=encoding, decimal=decimal)

    def for_columns(self, columns: Sequence[str]) -> TableReading:
        """The same for new rows of a trained model: only columns that are inputs matter, dropped ones may be away."""
        used = {*columns, *(name.partition("=")[0] for name in columns)}
        numeric, categorical = (tuple(n for n in names if n in used) for names in (self.numeric, self.categorical))
        dates = {name: text for name, text in (self.date or {}).items() if name in used}
        return replace(self, drop=(), numeric=numeric, categorical=categorical, date=dates)

    def check_names(self, path: object, columns: Sequence[str]) -> None:
        """Refuse options about columns that the table does not have."""
        for option in ("drop", "numeric", "categorical", "date"):
            for name in getattr(self, option) or ():
                if name not in columns:
                    raise SettingError(
                        f"{option} names {name!r}, and {path} has no such column: {nearest(name, columns)}"
                    )

    def convert(self, name: str, values: Sequence[str] | Values, where: object = "the table") -> Values:
        """A column as numbers (NaN where missing) or texts ("" where missing)."""
        if isinstance(values, np.ndarray) and values.dtype.kind == "f":
            whole = [("" if v != v else str(int(v)) if v.is_integer() else str(v)) for v in values.tolist()]
            return np.array(whole, str) if name in self.categorical else values
        texts = ["" if str(value).strip().lower() in MISSING else str(value).strip() for value in values]
        if name in self.categorical:
            return np.array(texts, str)
        if name in self.numeric:
            return np.array([number(BOUND.sub("", text), self.decimal) for text in texts], np.float64)
        if self.date and name in self.date:
            return days(texts, self.date[name], f"{where}: the column {name!r}")
        found = [text if text else "nan" for text in texts]
        if self.decimal == ",":
            found = [text.replace(",", ".") if COMMA.match(text) else text for text in found]
        try:
            return np.array(found, str).astype(np.float64)
        except ValueError:
            return np.array(texts, str)


def has(name: str) -> Any:
    """Whether a collection holds the name."""
    return lambda names: name in names


def split(text: str) -> tuple[str, ...]:
    """Names that are separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def number(text: str, decimal: str = ".") -> float:
    """A text as a number; NaN if it is none."""
    try:
        return float(text.replace(",", ".") if decimal == "," else text)
    except ValueError:
        return float("nan")


# -- dates -------------------------------------------------------------------------------------------------------------
def date_formats(texts: Sequence[str]) -> list[str]:
    """The formats in which all texts are dates."""
    some = [*dict.fromkeys(text for text in texts if text)]
    return [each for each in DATE_FORMATS if some and all(day_of(text, each) is not None for text in some[:2000])]


def day_of(text: str, format: str) -> float | None:
    """Days since 1970 of a date in this format; None if it is none. Times of day count as parts of a day."""
    if format == "%Y%m%d" and not (len(text) == 8 and text.isdecimal() and text[:2] in ("19", "20")):
        return None
    try:
        return datetime.strptime(text, format).replace(tzinfo=UTC).timestamp() / DAY
    except ValueError:
        return None


def days(texts: Sequence[str], format: str, where: str) -> npt.NDArray[np.float64]:
    """Dates as days since 1970, NaN where missing."""
    formats = [format] if format else date_formats(texts)
    if not formats:
        odd = next((text for text in texts if text), "")
        raise DataError(f"{where} holds {odd!r}, which is no date that is known; give its format: date=NAME:%d.%m.%y.")
    if len(formats) > 1 and {"%d/%m/%Y", "%m/%d/%Y"} <= {*formats}:
        raise DataError(f"{where} may have the day or the month first; give its format: date=NAME:%d/%m/%Y.")
    found = [day_of(text, formats[0]) if text else float("nan") for text in texts]
    if None in found:
        odd = texts[found.index(None)]
        raise DataError(f"{where} holds {odd!r}, which is no date of the format {formats[0]}.")
    return np.array(found, np.float64)


# -- what a column is --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Column:
    """What is known about a column."""

    name: str
    kind: str  # number, category, id, date, constant, or mixed: numbers and texts
    missing: int
    different: int
    examples: tuple[str, ...]
    problem: str = ""  # why it cannot be used as it is, and the option that settles it
    read_as: str = ""  # what an option has made of it

    @property
    def inputs(self) -> int:
        """How many inputs of a model it becomes."""
        return self.different if self.kind in ("category", "constant") and not self.read_as else 1


def describe_column(name: str, values: Values, reading: TableReading) -> Column:
    """What a column is, and whether it can be used as it is."""
    options = ("numeric", "categorical", "date")
    read_as = next((option for option in options if name in (getattr(reading, option) or ())), "")
    numbers = values.dtype.kind == "f"
    gone = np.isnan(values) if numbers else values == ""
    here = values[~gone]
    different = np.unique(here)
    kind, problem, odd = "constant", "", list[str]()
    if len(different) <= 1:
        pass
    elif numbers:
        kind, problem, odd = judge_numbers(name, here, different)
    elif read_as == "categorical":
        kind, problem, odd = "category", "", []
    else:
        kind, problem, odd = judge_texts(name, [str(text) for text in here.tolist()], len(different))
    shown = odd or [f"{value:g}" if numbers else str(value) for value in different[:3].tolist()]
    return Column(name, kind, int(gone.sum()), len(different), tuple(shown), "" if read_as else problem, read_as)


def judge_numbers(name: str, here: Values, different: Values) -> tuple[str, str, list[str]]:
    """The kind of a column of numbers, what is wrong with it, and doubtful values."""
    whole = bool((here == np.rint(here)).all())
    in_turn = here[0] in (0, 1) and bool((np.diff(here) == 1).all())  # the rows' own numbers
    if len(different) == len(here) >= FEW_ROWS and whole and (in_turn or ID_NAME.search(name)):
        problem = (
            f"{name!r} looks like an id: every row has another number. Leave it out with --drop {name}, or keep it "
            f"with --numeric {name}."
        )
        return "id", problem, []
    return "number", "", []


def judge_texts(name: str, texts: list[str], different: int) -> tuple[str, str, list[str]]:
    """The same for texts."""
    rows = len(texts)
    commas = sum(bool(COMMA.match(text)) for text in texts)
    odd = [text for text in texts if math.isnan(number(text))]
    if commas and commas + rows - len(odd) >= 0.9 * rows:
        return "mixed", f"{name!r} has decimal commas ({first(texts, COMMA.match)!r}): use --decimal ,", []
    if date_formats(texts):
        problem = f"{name!r} holds dates ({texts[0]!r}): use --date {name} for days as a number, or --drop {name}."
        return "date", problem, []
    codes = different <= FEW_CODES and not any(BOUND.match(text) for text in odd)  # stages 1, 2, x are categories
    if len(odd) <= rows / 2 and not codes:
        doubtful = [*dict.fromkeys(odd)][:3]
        problem = (
            f"{name!r} holds numbers, and {', '.join(map(repr, doubtful))} beside them: use --numeric {name} (bounds "
            f"such as <0.5 become the number, other texts are missing), or --categorical {name}."
        )
        return "mixed", problem, doubtful
    if (different == rows >= FEW_ROWS) or (different > MOST_VALUES and different > rows / 2):
        problem = (
            f"{name!r} looks like an id or free text: {different:,} different texts in {rows:,} rows. Leave it out "
            f"with --drop {name}."
        )
        return "id", problem, []
    if different > MOST_VALUES:
        problem = (
            f"{name!r} has {different:,} different texts, and each would become an input. Leave it out with --drop "
            f"{name}, or keep it with --categorical {name}."
        )
        return "category", problem, []
    return "category", "", []


def first(texts: Sequence[str], fits: Any) -> str:
    """The first text that fits."""
    return next(text for text in texts if fits(text))


def check_columns(path: object, columns: Sequence[Column]) -> None:
    """Refuse a table with columns that would be silently misread, all at once."""
    problems = [column.problem for column in columns if column.problem]
    if problems:
        listed = " ".join(problems[:10])
        more = f" And {len(problems) - 10} more." if len(problems) > 10 else ""
        raise DataError(f"{path}: {listed}{more}")
