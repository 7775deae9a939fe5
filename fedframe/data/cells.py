"""The cells of a table as numbers: bounds such as <0.5, decimal commas, thousands, units and dates."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime

import numpy as np
import numpy.typing as npt

from fedframe.errors import DataError

DATE_FORMATS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d", "%Y%m%d",
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%y", "%d-%m-%Y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y",
    "%b %d, %Y", "%B %d, %Y", "%d/%m/%Y", "%d/%m/%Y %H:%M", "%d/%m/%y", "%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%y",
)  # fmt: skip
DAY = 86400.0
LOOKED_AT = 2000  # different texts that decide on a format
BOUND = re.compile(r"^[<>≤≥~=]+\s*")  # laboratories write <0.5 for what they cannot measure
COMMA = re.compile(r"^[-+]?\d+,\d+$")
UNIT = r"(?:[^\W\d_]|[%°‰]|/(?=[^\W\d_])).*"  # mg/l, %, /min; 120/80 and 1-2 are no numbers with a unit
NUMBERS = {  # with thousands apart, and maybe a unit
    decimal: re.compile(
        rf"([-+]?(?:\d+|[1-9]\d{{0,2}}(?:[{other}'\u00a0\u202f ]\d{{3}})+)?(?:[{decimal}]\d*)?(?:[eE][-+]?\d+)?)"
        rf"\s*({UNIT})?"
    )
    for decimal, other in ((".", ","), (",", "."))
}
THOUSANDS = {  # could also be a fraction with three digits
    decimal: re.compile(rf"[-+]?[1-9]\d{{0,2}}(?:[{other}]\d{{3}})+") for decimal, other in ((".", ","), (",", "."))
}


# -- numbers -----------------------------------------------------------------------------------------------------------
def number(text: str, decimal: str = ".") -> float:
    """A plain number; NaN if the text is not a number."""
    try:
        return float(text.replace(",", ".") if decimal == "," else text)
    except ValueError:
        return float("nan")


def measured(text: str, decimal: str = ".") -> tuple[float, str]:
    """A number as laboratories write them, with its unit: <0.5, 1,024, 53.6 mg/l; NaN if the text is none."""
    text = BOUND.sub("", text)
    found = NUMBERS[decimal].fullmatch(text)
    if found is None or not any(sign.isdigit() for sign in found[1]):
        return number(text, decimal), ""
    digits = re.sub(rf"[{'.' if decimal == ',' else ','}'\u00a0\u202f ]", "", found[1])
    return number(digits, decimal), (found[2] or "").strip()


def measurements(texts: Sequence[str], decimal: str, where: str) -> npt.NDArray[np.float64]:
    """Texts as numbers, NaN for those that are none. Several units would be silently wrong."""
    found = [measured(text, decimal) for text in texts]
    units = {unit.casefold(): unit for value, unit in found if unit and not math.isnan(value)}
    if len(units) > 1:
        first, second = sorted(units.values())[:2]
        raise DataError(
            f"{where} has numbers with the units {first!r} and {second!r}; convert them to one unit, or leave the "
            "column out with --drop."
        )
    return np.array([value for value, _ in found], np.float64)


# -- dates -------------------------------------------------------------------------------------------------------------
def date_formats(texts: Sequence[str]) -> list[str]:
    """The formats in which all texts are dates."""
    some = [*dict.fromkeys(text for text in texts if text)][:LOOKED_AT]
    return [each for each in DATE_FORMATS if some and all(day_of(text, each) is not None for text in some)]


def swappable(texts: Sequence[str], formats: Sequence[str]) -> bool:
    """Whether the formats make other dates of the same texts: day and month may be the other way round."""
    some = [*dict.fromkeys(text for text in texts if text)][:LOOKED_AT]
    return any(len({day_of(text, each) for each in formats}) > 1 for text in some)


def day_of(text: str, format: str) -> float | None:
    """Days since 1970 of a date in this format; None if it is none. Times of day count as parts of a day."""
    if format == "%Y%m%d" and not (len(text) == 8 and text.isdecimal() and text[:2] in ("19", "20")):
        return None
    try:
        return datetime.strptime(text, format).replace(tzinfo=UTC).timestamp() / DAY
    except ValueError:
        return None


def days_since_1970(value: date) -> float:
    """The same of a date or a time that has been read already, as in a DataFrame."""
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / DAY


def says_nothing(text: str) -> bool:
    """Whether a text among dates only says that there is none: unknown, pending, -."""
    return not any(sign.isdigit() for sign in text)


def days(texts: Sequence[str], format: str, where: str) -> npt.NDArray[np.float64]:
    """Dates as days since 1970, NaN where missing. Words without any digit are missing, too; what is odd is refused."""
    dates = ["" if says_nothing(text) else text for text in texts]
    formats = [format] if format else date_formats(dates)
    if not formats and any(dates):
        odd = next(text for text in dates if text)
        raise DataError(f"{where} holds {odd!r}, which is no date that is known; give its format: date=NAME:%d.%m.%y.")
    if swappable(dates, formats):
        raise DataError(
            f"{where} may have the day or the month first; give its format: date=NAME:{formats[0]} or "
            f"date=NAME:{formats[1]}."
        )
    found = [day_of(text, formats[0]) if text else float("nan") for text in dates]
    if None in found:
        odd = texts[found.index(None)]
        raise DataError(f"{where} holds {odd!r}, which is no date of the format {formats[0]}.")
    return np.array(found, np.float64)
