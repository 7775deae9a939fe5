"""Messy tables, as hospitals have them: each column is read rightly, or refused with the option that settles it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedframe
from fedframe.cli import app
from fedframe.data import load_source
from fedframe.data.columns import TableReading, date_formats, describe_column
from fedframe.errors import DataError, SettingError

ROWS = 240


def write(folder: Path, separator: str = ",", encoding: str = "utf-8", **columns: Any) -> str:
    """A table of these columns with a label; a column is a function of the row's number."""
    draw = np.random.default_rng(0)
    sick = draw.random(ROWS) < 0.5
    lines = [separator.join([*columns, "age", "label"])]
    for i in range(ROWS):
        cells = [str(make(i)) for make in columns.values()]
        lines.append(
            separator.join([*cells, f"{40 + 20 * sick[i] + draw.normal():.1f}", "sick" if sick[i] else "well"])
        )
    (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding=encoding)
    return f"csv:{folder / 't.csv'}"


def day(i: int) -> str:
    return f"{1 + i % 28:02d}.{1 + i // 28 % 12:02d}.20{10 + i % 9}"


MESSY: dict[str, tuple[dict[str, Any], str, str]] = {
    "dates": ({"admitted": day}, "holds dates", "date=admitted"),
    "a bound among numbers": (
        {"crp": lambda i: "<0.5" if i == 7 else f"{i / 7:.2f}"}, "'<0.5' beside them", "numeric=crp",
    ),
    "decimal commas": ({"weight": lambda i: f'"{60 + i % 30},{i % 10}"'}, "decimal commas", "decimal=,"),
    "text ids": ({"name": lambda i: f"P-{i * 7919 % 100003:05d}x"}, "looks like an id", "drop=name"),
    "number ids": ({"patient_id": lambda i: 10_000 + i * 37}, "looks like an id", "drop=patient_id"),
    "row numbers": ({"row": lambda i: i}, "looks like an id", "drop=row"),
    "many texts": ({"ward": lambda i: f"ward {i % 110}"}, "110 different texts", "drop=ward"),
}  # fmt: skip


@pytest.mark.parametrize("what", MESSY)
def test_a_messy_column_is_refused_with_an_option_that_settles_it(tmp_path: Path, what: str) -> None:
    columns, says, option = MESSY[what]
    spec = write(tmp_path, **columns)
    with pytest.raises(DataError, match=re.escape(says)) as error:
        load_source(spec)
    name, _, value = option.partition("=")
    assert f"--{name} {value}" in str(error.value)
    source = load_source(f"{spec}?{option}")
    assert source.columns is not None
    expected = {"age"} if name == "drop" else {"age", *columns}
    assert {*source.columns} == expected  # one input per column: nothing has become a column per value


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    spec = write(tmp_path, **{name: make for columns, _, _ in MESSY.values() for name, make in columns.items()})
    with pytest.raises(DataError) as error:
        load_source(spec)
    for columns, _, _ in MESSY.values():
        assert repr(next(iter(columns))) in str(error.value)


def test_values_are_read_rightly(tmp_path: Path) -> None:
    reading = TableReading.of({"numeric": "crp", "date": "when", "categorical": "code", "decimal": ","})
    assert reading.convert("crp", ["<0,5", "> 200", "1,5", "haemolytic", ""]).tolist() == pytest.approx(
        [0.5, 200, 1.5, np.nan, np.nan], nan_ok=True
    )
    days = reading.convert("when", ["01.02.1970", "", "02.02.1970"])
    assert days.tolist() == pytest.approx([31, np.nan, 32], nan_ok=True)
    assert reading.convert("code", ["1", "2", "NA"]).tolist() == ["1", "2", ""]
    assert reading.convert("other", ["1,5", "2"]).tolist() == [1.5, 2]
    assert reading.convert("code", np.array([1.0, np.nan, 2.5])).tolist() == ["1", "", "2.5"]


def test_day_or_month_first_is_asked_for_and_not_guessed() -> None:
    assert {"%d/%m/%Y", "%m/%d/%Y"} <= {*date_formats(["03/04/2020", "05/06/2020"])}
    with pytest.raises(DataError, match="day or the month first"):
        TableReading.of({"date": "d"}).convert("d", ["03/04/2020"])
    found = [TableReading.of({"date": f"d:{f}"}).convert("d", ["03/04/2020"])[0] for f in ("%d/%m/%Y", "%m/%d/%Y")]
    assert found[0] - found[1] == 30  # 3 April and 4 March
    assert date_formats(["23/04/2020", "05/06/2020"]) == ["%d/%m/%Y"]


def test_a_file_that_is_not_utf8_says_which_option_reads_it(tmp_path: Path) -> None:
    spec = write(tmp_path, encoding="latin-1", ward=lambda i: "Köln" if i % 2 else "Bonn")
    with pytest.raises(DataError, match="--encoding latin-1"):
        load_source(spec)
    assert "ward=Köln" in (load_source(f"{spec}?encoding=latin-1").columns or ())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decimal": ";"}, "decimal"),
        ({"encoding": "klingon"}, "latin-1"),
        ({"drop": "a", "numeric": "a"}, "several of drop, numeric"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        TableReading.of(options)


def test_an_option_about_a_column_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    spec = write(tmp_path, ward=lambda i: i % 3)
    with pytest.raises(SettingError, match="did you mean 'ward'"):
        load_source(f"{spec}?drop=wrd")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.5, 2.5, 1.5], "number"),
        ([3.0, 3.0], "constant"),
        (["a", "b", "a"], "category"),
        ([float(i) for i in range(50)], "id"),
        ([float(i % 7) for i in range(50)], "number"),
        ([i * 1.37 for i in range(50)], "number"),  # a measurement is different in every row
    ],
)
def test_kinds_of_columns(values: list[Any], kind: str) -> None:
    assert describe_column("x", np.array(values), TableReading()).kind == kind


@pytest.mark.slow
def test_the_model_reads_new_tables_as_it_read_the_first(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "crp": lambda i: "<0.5" if i % 50 == 7 else f"{i / 7:.2f}",
        "admitted": day,
        "patient_id": lambda i: i,
    }
    spec = write(tmp_path, **columns)
    given: dict[str, Any] = {"clients": 2, "partition": "iid", "rounds": 1, "workers": 1, "progress": False}
    data = f"{spec}?numeric=crp&date=admitted&drop=patient_id"
    result = fedframe.run("fedavg", data=data, out=tmp_path / "run", **given)
    new = tmp_path / "new.csv"
    new.write_text("admitted,crp,age\n05.03.2012,<0.5,61\n05.03.2012,0.5,61\n")
    from fedframe.runs.predictor import predict_file

    first, second = (line.split("\t")[1:] for line in predict_file(tmp_path / "run", new, None, 2))
    assert first == second
    pandas = pytest.importorskip("pandas")
    table = result.model.predict_table(pandas.read_csv(new))
    assert table.iloc[0].tolist() == table.iloc[1].tolist()
    assert table.iloc[0]["prediction"] == first[0]


@pytest.mark.slow
def test_the_command_shows_every_column_before_it_refuses(tmp_path: Path) -> None:
    spec = write(tmp_path, admitted=day, ward=lambda i: f"w{i % 3}")
    shown = CliRunner().invoke(app, ["data", spec])
    assert shown.exit_code != 0
    for text in ("admitted", "date (?)", "ward", "category"):
        assert text in shown.output
    fine = CliRunner().invoke(
        app, ["data", spec, "--date", "admitted:%d.%m.%Y", "--clients", "2", "--partition", "iid", "--picture",
              str(tmp_path / "p.svg")],
    )  # fmt: skip
    assert fine.exit_code == 0, fine.output
    wrong = CliRunner().invoke(app, ["data", "digits", "--drop", "x"])
    assert wrong.exit_code != 0
