"""The columns of a table: what each is, what is doubtful about it, and the option that settles it.

Real tables have dates, ids, `<0.5` among numbers and decimal commas. Read as texts, each of their values would become
an input of its own, and an id would be learnt by heart; so such columns are refused until an option says what they are.
Options stand in the data's text, `csv:my.csv?drop=name&numeric=crp`, or on the command line, `--drop name`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedframe.data.cells import (
    BOUND,
    COMMA,
    THOUSANDS,
    date_formats,
    day_of,
    days,
    measured,
    measurements,
    number,
    says_nothing,
    swappable,
)
from fedframe.errors import DataError, SettingError, nearest

Values = npt.NDArray[Any]
MOST_TEXT = 1 << 30  # bytes of a column of texts
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
OPTIONS = ("drop", "numeric", "categorical", "date", "missing", "encoding", "decimal")
MOST_VALUES = 100  # of a text column: each becomes an input
FEW_CODES = 10  # different values of a column of codes, some of which are numbers
FEW_ROWS = 20  # with fewer, values that are all different mean nothing
MOST_SAID = 30  # problems in one sentence
MANY_ROWS = 100  # whole numbers that are different in so many are hardly ever measured
ID_NAME = re.compile(r"(^|[_\s.-])(id|nr|no|number|mrn|uuid|pid|index|key)$|[a-z]I[Dd]$|nummer$", re.IGNORECASE)
# Also where a patient comes several times.
SURELY_ID = re.compile(
    r"(^|[_\s.-])(id|mrn|uuid|pid)$|[a-z]I[Dd]$|(patient|fall|case).*(nr|no|number|nummer)$", re.IGNORECASE
)
PLACEHOLDER = re.compile(r"-?9{2,}")  # what many systems write for a missing number


@dataclass(frozen=True)
class TableReading:
    """How a table is read, as its options say."""

    drop: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    date: Mapping[str, str] | None = None  # format by column, "" to find it
    missing: frozenset[str] = field(default=frozenset())  # what else stands for a missing value
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
        missing = frozenset(text.lower() for text in split(options.get("missing", "")))
        dates = {text.partition(":")[0].strip(): text.partition(":")[2].strip() for text in named.pop("date")}
        twice = [
            name for name in {*dates, *sum(named.values(), ())} if sum(map(has(name), (*named.values(), dates))) > 1
        ]
        if twice:
            raise SettingError(
                f"The column {min(twice)!r} is named in more than one of drop, numeric, categorical and date."
            )
        return cls(**named, date=dates, missing=missing, encoding=encoding, decimal=decimal)

    def otherwise(self, options: Mapping[str, str]) -> TableReading:
        """The same, but for what these options say."""
        asked = TableReading.of(options)
        return replace(self, **{name: getattr(asked, name) for name in options})

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
            return self.convert_numbers(name, values, where)
        gone = MISSING | self.missing
        texts = ["" if str(value).strip().lower() in gone else str(value).strip() for value in values]
        column = f"{where}: the column {name!r}"
        refuse_long_texts(texts, column, name)
        if name in self.categorical:
            return np.array(texts, str)
        if name in self.numeric:
            return measurements(texts, self.decimal, column)
        if self.date and name in self.date:
            return days(texts, self.date[name], column)
        found = [text if text else "nan" for text in texts]
        if self.decimal == ",":
            points = [text for text in texts if "." in text]
            if points and all(THOUSANDS[","].fullmatch(text) for text in points):
                return np.array(texts, str)  # 1.024 may be a thousand
            found = [text.replace(",", ".") if COMMA.match(text) else text for text in found]
        try:
            return np.array(found, str).astype(np.float64)
        except ValueError:
            return np.array(texts, str)

    def convert_numbers(self, name: str, values: Values, where: object) -> Values:
        """The same of a column that holds numbers already."""
        gone = [value for value in map(number, self.missing) if not math.isnan(value)]
        values = np.where(np.isin(values, gone), np.nan, values) if gone else values
        if name not in self.categorical and not (self.date and name in self.date):
            return values
        texts = ["" if v != v else str(int(v)) if v.is_integer() else str(v) for v in values.tolist()]
        return self.convert(name, texts, where)


def refuse_long_texts(texts: Sequence[str], column: str, name: str) -> None:
    """Refuse a column whose texts would fill memory: every one takes as much as the longest."""
    longest = max(map(len, texts), default=0)
    if 4 * longest * len(texts) > MOST_TEXT:
        raise DataError(
            f"{column} has a text of {longest:,} characters, and {len(texts):,} as long would take "
            f"{4 * longest * len(texts) / 1e9:.0f} GB; leave it out with --drop {name}."
        )


def has(name: str) -> Any:
    """Whether a collection holds the name."""
    return lambda names: name in names


def split(text: str) -> tuple[str, ...]:
    """Names that are separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


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
    if len(here) == 0 and read_as in ("numeric", "date"):
        what = "number" if read_as == "numeric" else "date"
        problem, read_as = f"{name!r} has no value that is a {what}: use {say('drop', name)}.", ""
    elif len(different) <= 1:
        pass
    elif read_as == "categorical":
        kind = "category"
    elif numbers:
        kind, problem, odd = judge_numbers(name, here, different)
    else:
        kind, problem, odd = judge_texts(name, [str(text) for text in here.tolist()], len(different), reading.decimal)
    shown = odd or [plain(value) if numbers else str(value) for value in different[:3].tolist()]
    return Column(name, kind, int(gone.sum()), len(different), tuple(shown), "" if read_as else problem, read_as)


def plain(value: float) -> str:
    """A number as people write it."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:g}"


def say(option: str, name: str) -> str:
    """An option about a column as it is typed."""
    return f"--{option} {shlex.quote(name)}"


def judge_numbers(name: str, here: Values, different: Values) -> tuple[str, str, list[str]]:
    """The kind of a column of numbers, what is wrong with it, and doubtful values."""
    whole = bool((here == np.rint(here)).all())
    if whole and all(day_of(plain(value), "%Y%m%d") is not None for value in different.tolist()):
        problem = (
            f"{name!r} holds dates ({plain(here[0])}): use {say('date', name)} for days as a number, or "
            f"{say('drop', name)}."
        )
        return "date", problem, []
    in_turn = here[0] in (0, 1) and bool((np.diff(here) == 1).all())  # the rows' own numbers
    each_another = len(different) == len(here) >= FEW_ROWS
    looks = each_another and (in_turn or ID_NAME.search(name) or len(here) >= MANY_ROWS)
    called = SURELY_ID.search(name) and len(different) >= max(FEW_ROWS, len(here) / 10)
    if whole and (looks or called):
        many = "every row has a different number" if each_another else f"{len(different):,} different numbers"
        problem = (
            f"{name!r} looks like an id: {many}. Leave it out with {say('drop', name)}, or keep it with "
            f"{say('numeric', name)}."
        )
        return "id", problem, []
    return "number", *doubtful_numbers(name, here, different)


def doubtful_numbers(name: str, here: Values, different: Values) -> tuple[str, list[str]]:
    """Values such as -999 that come again and again, farther from all others than these are from each other.

    Below 0 they need not be far, where no other number is: laboratory values of thousands hide a -999 otherwise.
    """
    if not np.isfinite(different).all():
        return "", []
    for value, nearest_value, end in (
        (different[0], different[1], different[-1]),
        (different[-1], different[-2], different[0]),
    ):
        times = int((here == value).sum())
        text, span = plain(float(value)), abs(float(end - nearest_value))
        far = abs(float(value - nearest_value)) > max(span, 1.0) or value < 0 <= nearest_value
        if times > 1 and PLACEHOLDER.fullmatch(text) and far:
            rest = f"{plain(float(min(nearest_value, end)))} to {plain(float(max(nearest_value, end)))}"
            problem = (
                f"{name!r} is {text} in {times:,} rows, and {rest} in the others: use --missing={text} if that stands "
                f"for a missing value, or keep it with {say('numeric', name)}."
            )
            return problem, [text]
    return "", []


def judge_texts(name: str, texts: list[str], different: int, decimal: str) -> tuple[str, str, list[str]]:
    """The same for texts."""
    rows = len(texts)
    if problem := found_commas(name, texts, decimal) or found_dates(name, texts):
        return "date" if "dates" in problem else "mixed", problem, []
    unplain = [t for t in texts if math.isnan(number(t, decimal)) or THOUSANDS[decimal].fullmatch(t)]
    like = [text for text in unplain if not math.isnan(measured(text, decimal)[0])]
    words = [text for text in texts if math.isnan(measured(text, decimal)[0])]
    odd = [*dict.fromkeys([*like, *words])][:3]
    codes = different <= FEW_CODES and not any(BOUND.match(text) for text in like)  # stages 1, 2, x are categories
    units = {measured(text, decimal)[1].casefold() for text in like}
    if len(words) <= rows / 2 and not codes and len(units) <= FEW_CODES:
        as_number = f"{like[0]!r} is then {measured(like[0], decimal)[0]:.10g}, " if like else ""
        problem = (
            f"{name!r} holds numbers, and {', '.join(map(repr, odd))} beside them: use {say('numeric', name)} ("
            f"{as_number}other texts are missing), or {say('categorical', name)}."
        )
        return "mixed", problem, odd
    keep = f", or keep it with {say('categorical', name)} (each text is an input)" if different < rows else ""
    called = SURELY_ID.search(name) and different >= max(FEW_ROWS, rows / 10)  # of patients who come again, too
    if called or (different == rows >= FEW_ROWS) or (different > MOST_VALUES and different > rows / 2):
        problem = (
            f"{name!r} looks like an id or free text: {different:,} different texts in {rows:,} rows. Leave it out "
            f"with {say('drop', name)}{keep}."
        )
        return "id", problem, []
    if different > MOST_VALUES:
        problem = (
            f"{name!r} has {different:,} different texts, and each would become an input. Leave it out with "
            f"{say('drop', name)}, or keep it with {say('categorical', name)}."
        )
        return "category", problem, []
    return "category", "", []


def found_commas(name: str, texts: Sequence[str], decimal: str) -> str:
    """What to do where commas are decimal, or may be."""
    if decimal == ",":
        return ""
    fits = [text for text in texts if not math.isnan(measured(text, ",")[0])]
    commas = [text for text in fits if "," in text]
    if not commas or len(fits) < 0.9 * len(texts):
        return ""
    sure = [text for text in commas if not THOUSANDS["."].fullmatch(text)]
    if not sure:
        return (
            f"{name!r} has commas that may be decimal or set thousands apart ({commas[0]!r}): use "
            f"{say('numeric', name)} for thousands, or --decimal , for decimals."
        )
    rest = next((text for text in texts if math.isnan(number(text, ","))), None)
    more = "" if rest is None else f", with {say('numeric', name)} for {rest!r}"
    return f"{name!r} has decimal commas ({sure[0]!r}): use --decimal , for them{more}."


def found_dates(name: str, texts: Sequence[str]) -> str:
    """What to do with dates, among which words may stand."""
    dates = [text for text in texts if not says_nothing(text)]
    formats = date_formats(dates)
    if not formats or len(dates) < len(texts) / 2:
        return ""
    words = sorted({text for text in texts if says_nothing(text)})
    beside = f" (and {words[0]!r}, which is then missing)" if words else ""
    if swappable(dates, formats):
        first, second = (shlex.quote(f"{name}:{each}") for each in formats[:2])
        return (
            f"{name!r} holds dates with the day or the month first ({dates[0]!r}){beside}: use --date {first} or "
            f"--date {second} for days as a number, or {say('drop', name)}."
        )
    return (
        f"{name!r} holds dates ({dates[0]!r}){beside}: use {say('date', name)} for days as a number, or "
        f"{say('drop', name)}."
    )


def check_columns(path: object, columns: Sequence[Column]) -> None:
    """Refuse a table with columns that would be silently misread, all at once."""
    problems = [column.problem for column in columns if column.problem]
    if problems:
        listed = " ".join(problems[:MOST_SAID])
        more = f" And {len(problems) - MOST_SAID} more." if len(problems) > MOST_SAID else ""
        text = "In Python, comparisons and federations options stand in the data's text: csv:my.csv?drop=id&date=day."
        raise DataError(f"{path}: {listed}{more} {text}")
