"""`csv:PATH`, `parquet:PATH`: rows of a table -> vectors; the encoding is fitted on the training rows alone.

A file is read as named columns: float64 with NaN for missing numbers, or texts with "" for missing ones. Numbers stay
numbers, a missing one becomes the training mean; texts become one column per value seen in training (one-hot). An
input `age=`, with nothing behind the equals sign, says whether age is missing; only agreements that come from a
survey have such inputs. Where there is one, a missing text becomes the typical value too, and a table may lack the
whole column.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.arrays import encode_categories
from fedframe.data.cells import day_of, days_since_1970, number
from fedframe.data.columns import (
    MISSING,
    OPTIONS,
    Column,
    TableReading,
    check_columns,
    describe_column,
    refuse_long_texts,
)
from fedframe.data.source import ArrayInputs, Ints, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.data.target import MANY_NUMBERS, EncodedTarget, encode_target, find_task
from fedframe.errors import DataError, SettingError, nearest
from fedframe.util.extras import extra
from fedframe.util.unpacking import refuse_bomb

Table = dict[str, npt.NDArray[Any]]
LABEL_NAMES = ("label", "target", "class", "y")
CLIENT_NAMES = ("client", "client_id", "user", "user_id", "site", "hospital", "center", "centre", "institution")
MAX_TEXTS = 1000  # values of a text column; more is a name or an id, which cannot help a model
AS_IT_IS = TableReading()


def read_csv(path: Path, reading: TableReading = AS_IT_IS) -> Table:
    """Read a text file with a header line, separated by comma, semicolon, tab or bar."""
    try:
        with path.open(encoding=reading.encoding, newline="") as file:
            first = file.readline()
            file.seek(0)
            separator = max(",;\t|", key=first.count)
            lines = csv.reader(file, delimiter=separator, strict=True)
            header = [name.strip() for name in next(lines, [])]
            ends = len(header) > 1 and header[-1] == ""  # some programs end every line with a separator
            rows = []
            for row in lines:
                if len(row) == len(header):
                    rows.append(row)
                    ends = ends and not row[-1].strip()
                elif row:
                    names = ", ".join(map(repr, header[:5]))
                    raise DataError(
                        f"{path}, line {lines.line_num}: {len(row)} values; {len(header)} are expected, one per column "
                        f"of the header ({names}{', ...' if len(header) > 5 else ''}). Every line needs as many values "
                        "as the first line has names."
                    )
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} cannot be read as csv ({error}): it is not in {reading.encoding.removesuffix('-sig')}; try "
            "--encoding latin-1 (or cp1252, utf-16)."
        ) from None
    except (csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as csv ({error}).") from None
    if ends:
        header, rows = header[:-1], [row[:-1] for row in rows]
    if len(set(header)) != len(header) or "" in header:
        twice = next((f", and {name!r} is there twice" for name in header if header.count(name) > 1 and name), "")
        unnamed = f", and column {header.index('') + 1} has no name" if "" in header else ""
        raise DataError(f"{path} needs a header line that names every column, each once{twice or unnamed}.")
    if not rows:
        raise DataError(f"{path} is empty: a header line and at least one row are expected.")
    reading.check_names(path, header)
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    return {name: reading.convert(name, column, path) for name, column in columns.items() if name not in reading.drop}


def read_parquet(path: Path, reading: TableReading = AS_IT_IS) -> Table:
    """Read a Parquet file of numbers and texts."""
    with extra("parquet", "reading Parquet files needs pyarrow", DataError):
        import pyarrow
        import pyarrow.parquet
        import pyarrow.types
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            content = file.metadata
            cells = 8 * content.num_rows * content.num_columns  # a value that is repeated is stored once
        refuse_bomb(path, cells, path.stat().st_size, "save it as csv, or in parts")
        found = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is damaged, cut short or no Parquet file ({reason}).") from None
    table: Table = {}
    types = pyarrow.types
    reading.check_names(path, found.column_names)
    for name in found.column_names:
        if name in reading.drop:
            continue
        column, kind = found[name], found[name].type
        if types.is_dictionary(kind):
            kind = kind.value_type
        values = column.to_pylist()
        if types.is_string(kind) or types.is_large_string(kind):
            texts = ["" if value is None else value for value in values]
            refuse_long_texts(texts, f"{path}: the column {name!r}", name)
            table[name] = np.array(texts, str)
        elif types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
            table[name] = np.array([np.nan if value is None else float(value) for value in values], np.float64)
        elif types.is_date(kind) or types.is_timestamp(kind):
            table[name] = np.array(["" if value is None else iso_date(value) for value in values], str)
        else:
            raise DataError(
                f"{path}: the column {name!r} is of type {kind}; numbers, texts and dates can be used. Leave it out "
                f"with --drop {name}."
            )
    if not found.num_rows:
        raise DataError(f"{path} is empty: at least two rows are expected.")
    asked = {*reading.numeric, *reading.categorical, *(reading.date or ())}
    return {
        name: reading.convert(name, column, path) if name in asked or reading.missing else column
        for name, column in table.items()
    }


def iso_date(value: Any) -> str:
    """A date or time of a Parquet file as a text."""
    return str(value) if type(value) is date else str(value.strftime("%Y-%m-%d %H:%M:%S"))


def load_csv(spec: DataSpec) -> RawData:
    """A table in text form, with a header line."""
    return _load(spec, read_csv)


def load_parquet(spec: DataSpec) -> RawData:
    """A table in a Parquet file."""
    return _load(spec, read_parquet)


def table_columns(spec: DataSpec) -> tuple[list[Column], list[str]]:
    """What the columns of a table are that a model would take as inputs, and a sentence each on label and clients."""
    table, labels, columns = read_columns(spec)
    client = _column(spec.file, table, spec.client_column, "client_column", CLIENT_NAMES)
    said: list[str] = []
    if isinstance(_learned(spec, [table], labels), EncodedTarget):
        values = np.array([])
    else:
        values, counts = np.unique(table[labels[0]], return_counts=True)
        parts = [f"{value} {count:,}" for value, count in zip(values.tolist()[:10], counts.tolist(), strict=False)]
        names = ", ".join(parts) + (", ..." if len(values) > 10 else "")
        other = "" if spec.label else " (--label names another column)"
        said.append(f"label: {labels[0]}{other}: {len(values)} classes: {names}")
    alike: dict[str, list[str]] = {}
    for value in map(str, values.tolist()):
        alike.setdefault(" ".join(value.casefold().split()), []).append(value)
    if twins := next((some for some in alike.values() if len(some) > 1), None):
        said.append(
            f"The classes {' and '.join(map(repr, twins))} differ in upper case or blanks only, and are different "
            "classes here: if they are the same, write them alike."
        )
    if client is not None:
        said.append(f"clients: {client}: {len(np.unique(table[client])):,} values (used with --partition user)")
    return columns, said


def read_columns(spec: DataSpec) -> tuple[Table, list[str], list[Column]]:
    """A table, the names of its label columns, and what the columns are that a model would take as inputs."""
    reading = TableReading.of(spec.options)
    table = (read_csv if spec.name == "csv" else read_parquet)(spec.file, reading)
    labels = _labels(spec, table)
    client = _column(spec.file, table, spec.client_column, "client_column", CLIENT_NAMES)
    if len(labels) == 1:
        check_label(spec, table[labels[0]], labels[0])
    names = [name for name in table if name not in (*labels, client)]
    return table, labels, [describe_column(name, table[name], reading) for name in names]


def check_label(spec: DataSpec, values: npt.NDArray[Any], name: str) -> None:
    """Refuse a label that is no class, which a table's last column need not be."""
    there = values[~_is_missing(values)]
    numbers = there.dtype.kind == "f"
    different, rows = len(np.unique(there)), len(values)
    if numbers and not np.isfinite(there).all():
        return  # said by whoever encodes it
    if numbers and not (there == np.floor(there)).all():
        if spec.label is None and spec.task == "auto" and name.lower() not in LABEL_NAMES:
            example = next(value for value in there.tolist() if not value.is_integer())
            raise DataError(
                f"{spec.file}: the column {name!r}, which is taken for the label as the last column, holds fractions "
                f"({example:g}); name the label with --label, or set task = regression to predict this number."
            )
        return  # numbers to learn
    if different > max(100, rows / 2) or different == rows > 20:
        if spec.task == "regression":
            return
        how = "by its name" if name.lower() in LABEL_NAMES else "as the last column"
        guessed = "" if spec.label else f", which is taken for the label {how},"
        measured = "; if it is a quantity to predict, set task = regression" if numbers else ""
        raise DataError(
            f"{spec.file}: the column {name!r}{guessed} has {different:,} different values in {rows:,} rows, so it is "
            f"no class; name the label with --label{measured}."
        )
    if len(there) < rows:
        lines = (np.flatnonzero(_is_missing(values))[:3] + 2).tolist()
        raise DataError(
            f"{spec.file}: the column {name!r} has {rows - len(there):,} of {rows:,} rows without a value (lines "
            f"{', '.join(map(str, lines))}{', ...' if rows - len(there) > 3 else ''}); every row needs one: leave rows "
            f"without a label out of the file. These texts count as no value: {', '.join(sorted(MISSING - {''}))}."
        )


def _load(spec: DataSpec, reader: Callable[[Path, TableReading], Table]) -> RawData:
    spec.allow_options(("test", *OPTIONS))
    path, reading = spec.file, TableReading.of(spec.options)
    tables: list[Table] = [reader(path, reading)]
    if "test" in spec.options:
        other = path.parent / Path(spec.options["test"]).expanduser()
        if not other.exists():
            raise DataError(f"data {spec.text!r}: there is no {other.absolute()}.")
        tables.append(reader(other, reading))
        if set(tables[1]) != set(tables[0]):
            odd = min(set(tables[1]) ^ set(tables[0]))
            raise DataError(f"{path} and {other} must have the same columns; only one of them has {odd!r}.")
    labels = _labels(spec, tables[0])
    if spec.schema is None:
        client = _column(path, tables[0], spec.client_column, "client_column", CLIENT_NAMES)
    else:
        client = _check_schema(path, tables[0], labels, spec)
    if client in labels:
        raise SettingError(f"{path}: the column {client!r} cannot be both label and client column.")
    if spec.schema is None and len(labels) == 1:
        check_label(spec, tables[0][labels[0]], labels[0])
    has_test = len(tables) > 1
    for name in (*labels, client):
        if name is not None and any(_is_missing(table[name]).any() for table in tables):
            raise DataError(f"{path}: the column {name!r} has rows without a value; every row needs one.")
    learned = _learned(spec, tables, labels)
    if isinstance(learned, EncodedTarget):
        y, y_test, classes = learned.y, learned.y_test, learned.strata
    else:
        y, y_test, classes = learned
    user: Ints | None = None
    user_test: Ints | None = None
    users = None
    if client is not None:
        second = tables[1][client] if has_test else None
        user, user_test, users = encode_categories(tables[0][client], second, f"column {client!r} of {path}")
    if spec.schema is None or spec.schema.columns is None:
        names = [name for name in tables[0] if name not in (*labels, client)]
        check_columns(path, [describe_column(name, tables[0][name], reading) for name in names])
        columns = _encoded_columns(path, names, tables)
        if not columns:
            raise DataError(f"{path} has no column besides label and client; a model needs at least one input.")
        encoded = [_encode(table, columns) for table in tables]
    else:
        columns = spec.schema.columns
        check_new_columns(path, tables[0], columns, reading)
        encoded = [_encode_with_schema(path, table, columns, spec.schema.mean) for table in tables]
    train = Samples(ArrayInputs(encoded[0]), torch.from_numpy(y), user)
    test = None
    if has_test and y_test is not None:
        test = Samples(ArrayInputs(encoded[1]), torch.from_numpy(y_test), user_test)
    lacking = lacking_columns(tables[0], columns) if spec.schema is not None else []
    notes = tuple(f"{path} has no column {name!r}: all its values count as missing, as agreed." for name in lacking)
    if not isinstance(learned, EncodedTarget):
        return RawData(path.stem, train, test, classes, users, columns, notes)
    train = replace(train, values=learned.values)
    test = replace(test, values=learned.values_test) if test is not None else None
    return RawData(path.stem, train, test, classes, users, columns, (learned.note, *notes), learned.target)


def check_new_columns(path: Path, table: Table, columns: Sequence[str], reading: TableReading) -> None:
    """Refuse numbers of a table for agreed inputs that would be misread: dates such as 20250131, and -999.

    Ids are none here, for the columns have been agreed on; texts among numbers are refused when they are encoded.
    """
    names = [name for name in columns if name in table and table[name].dtype.kind == "f"]
    found = [describe_column(name, table[name], reading) for name in names]
    check_columns(path, [column for column in found if column.kind in ("number", "date")])


def lacking_columns(table: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """Columns that a table does not have and may lack, as an input says where they are missing."""
    return [name[:-1] for name in columns if name.endswith("=") and name not in table and name[:-1] not in table]


def _labels(spec: DataSpec, table: Table) -> list[str]:
    """The columns that are learned: one, or several whose names are separated by commas."""
    asked = spec.label
    if asked is None and spec.schema is not None and set(spec.schema.outputs) <= set(table):
        return list(spec.schema.outputs) if spec.schema.target is not None else [_label(spec, table)]
    if asked is None or asked in table or "," not in asked:
        return [_label(spec, table)]
    found = [name.strip() for name in asked.split(",") if name.strip()]
    for name in found:
        if name not in table:
            raise SettingError(f"label is {asked!r}, and {spec.file} has no column {name!r}: {nearest(name, table)}")
    if len(set(found)) < len(found):
        raise SettingError(f"label is {asked!r}: a column comes twice; name each once.")
    return found


def _label(spec: DataSpec, table: Table) -> str:
    return _column(spec.file, table, spec.label, "label", LABEL_NAMES) or list(table)[-1]


def _learned(
    spec: DataSpec, tables: Sequence[Table], labels: Sequence[str]
) -> EncodedTarget | tuple[Ints, Ints | None, tuple[str, ...]]:
    """The label column as classes, or one or several columns as the numbers or labels to learn."""
    path, asked = spec.file, spec.schema.task if spec.schema is not None else spec.task
    what = f"column {labels[0]!r} of {path}" if len(labels) == 1 else f"the columns {', '.join(labels)} of {path}"
    parts: list[npt.NDArray[Any]] = []
    for table in tables:
        texts = [name for name in labels if table[name].dtype.kind != "f"]
        if texts and (len(labels) > 1 or asked in ("regression", "multilabel")):
            raise DataError(f"{path}: the column {texts[0]!r} holds texts; numbers are expected, such as 0 and 1.")
        parts.append(table[labels[0]] if len(labels) == 1 else np.stack([table[name] for name in labels], axis=1))
    first, second = parts[0], parts[1] if len(parts) > 1 else None
    if len(labels) > 1 and asked == "classification":
        raise SettingError(f"label names {len(labels)} columns, and task = classification learns one; name one.")
    task = find_task(asked, first, what)
    if task != "classification":
        return encode_target(task, first, second, tuple(labels), what)
    if asked == "auto" and spec.schema is None and _looks_measured(first):
        raise DataError(
            f"{path}: the label column {labels[0]!r} has {len(np.unique(first))} different numbers in {len(first)} "
            "rows: a measured quantity, or classes? Set task = regression, or task = classification."
        )
    return encode_categories(first, second, what)


def _looks_measured(column: npt.NDArray[Any]) -> bool:
    """Whether whole numbers are so many, and so rare each, that they are hardly classes."""
    different = len(np.unique(column))
    return column.dtype.kind == "f" and different > MANY_NUMBERS and len(column) < 10 * different


def _check_schema(path: Path, table: Table, labels: Sequence[str], spec: DataSpec) -> str | None:
    """Check that a table fits the run's schema; return the column that names clients, if there is one."""
    assert spec.schema is not None
    columns = spec.schema.columns
    if columns is None:
        shape = spec.schema.shape
        raise DataError(
            f"{path} is a table, but what was agreed on, or trained, are arrays of shape {shape}; use data = npz:PATH. "
            "A federation on tables is made with 'fedframe federation new ... --like csv:sample.csv'."
        )
    try:
        known = {**table, **dict.fromkeys(lacking_columns(table, columns))}
        inputs = {name if name in known else _split_indicator(name, known)[0] for name in columns}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    others = [name for name in table if name not in inputs]
    if label := next((name for name in labels if name in inputs), ""):
        hint = f"set label to one of: {', '.join(others)}" if others else "add a column called label"
        raise SettingError(f"{path}: the column {label!r} is an input of the run and cannot be the label; {hint}.")
    # The client column of the run's own table need not exist in this one.
    requested = spec.client_column if spec.client_column in others else None
    return _column(
        path, {name: table[name] for name in others if name not in labels}, requested, "client_column", CLIENT_NAMES
    )


def _encode_with_schema(path: Path, table: Table, columns: tuple[str, ...], mean: torch.Tensor) -> torch.Tensor:
    """Encode the rows of a file as inputs of a run that was trained on these columns."""
    for name in columns:
        if name in table and table[name].dtype.kind == "f" and np.isinf(table[name]).any():
            raise DataError(f"{path}: the column {name!r} holds infinity; every number must be finite.")
    try:
        return encode_rows({name: column.tolist() for name, column in table.items()}, columns, mean)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _column(path: Path, table: Table, requested: str | None, setting: str, usual_names: Sequence[str]) -> str | None:
    """The requested column, or the first one with a usual name."""
    if requested is not None:
        if requested not in table:
            raise SettingError(
                f"{setting} is {requested!r}, and {path} has no such column: {nearest(requested, table)}"
            )
        return requested
    lower = {name.lower(): name for name in table}
    return next((lower[name] for name in usual_names if name in lower), None)


def _is_missing(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    missing: npt.NDArray[np.bool_] = np.isnan(column) if column.dtype.kind == "f" else column == ""
    return missing


def _encoded_columns(path: Path, names: list[str], tables: list[Table]) -> tuple[str, ...]:
    """The meaning of every input number: a column, or column=text."""
    out = []
    for name in names:
        parts = [table[name] for table in tables]
        if all(part.dtype.kind == "f" for part in parts):
            if any(np.isinf(part).any() for part in parts):
                raise DataError(f"{path}: the column {name!r} holds infinity; every number must be finite.")
            out.append(name)
            continue
        texts = np.unique(np.concatenate([part.astype(str) for part in parts]))
        if len(texts) > MAX_TEXTS:
            raise DataError(
                f"{path}: the text column {name!r} has {len(texts)} different values, more than {MAX_TEXTS}; "
                "leave out columns of names and ids."
            )
        out += [f"{name}={text}" for text in texts.tolist() if text != ""]
    return tuple(out)


def _encode(table: Mapping[str, npt.NDArray[Any]], columns: tuple[str, ...]) -> torch.Tensor:
    """Encode rows as numbers (n, d), NaN where one is missing; a text that is not among the columns is all zeros."""
    rows = len(next(iter(table.values())))
    out = np.empty((rows, len(columns)), np.float32)
    for i, name in enumerate(columns):
        if name in table and table[name].dtype.kind == "f":
            out[:, i] = table[name]
        else:
            column, _, text = _split_indicator(name, table)
            missing = _is_missing(table[column])
            out[:, i] = table[column].astype(str) == text if text else missing
            if text and f"{column}=" in columns:
                out[missing, i] = np.nan
    return torch.from_numpy(out)


def _split_indicator(name: str, table: Mapping[str, Any]) -> tuple[str, str, str]:
    """Split column=text at the equals sign that leaves a column of the table: column names may contain one too."""
    cut = name.find("=")
    while cut >= 0:
        if name[:cut] in table:
            return name[:cut], "=", name[cut + 1 :]
        cut = name.find("=", cut + 1)
    raise DataError(f"the table lacks the column {name.partition('=')[0]!r}.")


def fit_encoding(train: Samples, test: Samples, columns: tuple[str, ...]) -> tuple[Samples, Samples, tuple[str, ...]]:
    """Fit the encoding on the training rows: drop texts they lack, fill missing numbers with their means."""
    assert isinstance(train.x, ArrayInputs)
    assert isinstance(test.x, ArrayInputs)
    x = train.x.tensor
    seen = [not ("=" in name and bool((x[:, i] == 0).all())) for i, name in enumerate(columns)]
    keep = torch.tensor(seen).nonzero()[:, 0]
    if not len(keep):
        raise DataError("the table has no input column with a value in the training rows.")
    kept = tuple(columns[i] for i in keep.tolist())
    x = x.index_select(1, keep)
    means = x.double().nanmean(0).nan_to_num(0.0).float()  # 0 for a column without any training value
    out = []
    for samples, values in ((train, x), (test, test.x.tensor.index_select(1, keep))):
        filled = torch.where(values.isnan(), means, values)
        out.append(replace(samples, x=ArrayInputs(filled)))
    return out[0], out[1], kept


def encode_rows(
    rows: Mapping[str, Sequence[object]],
    columns: tuple[str, ...],
    mean: torch.Tensor,
    reading: TableReading = AS_IT_IS,
) -> torch.Tensor:
    """New rows, given column by column, as raw inputs (n, d) of a Source with these columns and mean.

    normalised(encode_rows(rows, source.columns, source.mean), source.mean, source.std) is what a model takes.
    """
    table = {}
    count = len(next(iter(rows.values()), ()))
    for name, column in {**rows, **{name: [None] * count for name in lacking_columns(rows, columns)}}.items():
        ready = [days_since_1970(v) if isinstance(v, date) else v for v in column]
        # A column that was text in training stays text, even where all new values look like numbers.
        text = name not in columns
        table[name] = np.array([as_text(v) for v in ready], str) if text else as_trained(name, ready, reading)
        if not text and table[name].dtype.kind != "f":
            odd = next((str(value) for value in table[name].tolist() if np.isnan(number(str(value)))), "")
            raise DataError(
                f"the column {name!r} holds texts ({odd!r}), and held numbers in training; if they are dates, decimal "
                f"commas or such as <0.5, say so: --date {name}, --decimal , or --numeric {name} (or in the "
                f"data's text: csv:my.csv?numeric={name})."
            )
    for name in columns:
        if name not in table:
            _split_indicator(name, table)
    values = _encode(table, columns)
    return torch.where(values.isnan(), mean, values)


def as_trained(name: str, given: Sequence[object], reading: TableReading) -> npt.NDArray[Any]:
    """A column that held numbers in training, which dates and bounds are as well where the reading says so.

    What is a number already has been read: 1.024 is no thousand then, though the text may be one.
    """
    dates = reading.date is not None and name in reading.date
    read = [isinstance(value, Real) and not (dates and day_of(as_text(value), "%Y%m%d") is not None) for value in given]
    found = reading.convert(name, ["" if done else as_text(value) for done, value in zip(read, given, strict=True)])
    if found.dtype.kind != "f":
        return found
    values = [float(value) if done else np.nan for done, value in zip(read, given, strict=True)]  # type: ignore[arg-type]
    ready = np.array(values, np.float64)
    return np.where(read, ready if dates else reading.convert_numbers(name, ready, "the table"), found)


def as_text(value: object) -> str:
    """A value as it stands in a file. Texts that look like whole numbers may have been read as such: "1" became 1.0."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
