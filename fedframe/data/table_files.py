"""Table files -> named columns: float64 with NaN for missing numbers, or texts with "" for missing ones."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedframe.errors import DataError

Table = dict[str, npt.NDArray[Any]]
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))


def number_or_text(values: Sequence[str]) -> npt.NDArray[Any]:
    """float64 if every value is a number or missing, else texts."""
    cleaned = ["nan" if value.strip().lower() in MISSING else value for value in values]
    try:
        return np.array(cleaned, str).astype(np.float64)
    except ValueError:
        return np.array(["" if value == "nan" else value.strip() for value in cleaned], str)


def read_csv(path: Path) -> Table:
    """A text file with a header line, separated by comma, semicolon or tab."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            separator = max(",;\t", key=first.count)
            lines = csv.reader(file, delimiter=separator, strict=True)
            header = [name.strip() for name in next(lines, [])]
            rows = []
            for row in lines:
                if len(row) == len(header):
                    rows.append(row)
                elif row:
                    raise DataError(
                        f"{path}, line {lines.line_num}: {len(row)} values; {len(header)} are expected, one per column."
                    )
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as csv ({error}).") from None
    if len(set(header)) != len(header) or "" in header:
        raise DataError(f"{path} needs a header line that names every column, each once.")
    if not rows:
        raise DataError(f"{path} is empty: a header line and at least one row are expected.")
    return {name: number_or_text(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)}


def read_parquet(path: Path) -> Table:
    """A Parquet file of numbers and texts."""
    try:
        import pyarrow
        import pyarrow.parquet
        import pyarrow.types
    except ImportError:
        raise DataError("reading Parquet files needs pyarrow: pip install 'fedframe[parquet]'.") from None
    try:
        found = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is damaged, cut short or no Parquet file ({reason}).") from None
    table: Table = {}
    types = pyarrow.types
    for name in found.column_names:
        column, kind = found[name], found[name].type
        if types.is_dictionary(kind):
            kind = kind.value_type
        values = column.to_pylist()
        if types.is_string(kind) or types.is_large_string(kind):
            table[name] = np.array(["" if value is None else value for value in values], str)
        elif types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
            table[name] = np.array([np.nan if value is None else float(value) for value in values], np.float64)
        else:
            raise DataError(f"{path}: the column {name!r} is of type {kind}; numbers and texts can be used.")
    if not found.num_rows:
        raise DataError(f"{path} is empty: at least two rows are expected.")
    return table
