"""Messy tables, as hospitals have them: each column is read rightly, or refused with the option that settles it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedframe
from fedframe.cli import app
from fedframe.data import load_source
from fedframe.data.cells import date_formats, measured
from fedframe.data.columns import TableReading, describe_column
from fedframe.data.new_client import load_new_client
from fedframe.errors import DataError, SettingError
from fedframe.network.node_data import form_of

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
    "an id of patients who come again": (
        {"patient_id": lambda i: 10_000 + i // 3 * 37}, "80 different numbers", "drop=patient_id",
    ),
    "a text id of patients who come again": (
        {"patient_id": lambda i: f"P{i // 3:04d}"}, "80 different texts", "drop=patient_id",
    ),
    "whole numbers that never come twice": ({"case": lambda i: 10_000 + i * 7919 % 100_003}, "an id", "drop=case"),
    "bounds for the most part": (
        {"crp": lambda i: "<0.5" if i % 3 else f"{i / 7:.2f}"}, "'<0.5' beside them", "numeric=crp",
    ),
    "numbers with a unit": ({"crp": lambda i: f"{i / 7:.2f} mg/l"}, "'0.00 mg/l' is then 0", "numeric=crp"),
    "thousands": ({"plt": lambda i: f'"{120_000 + 31 * i:,}"'}, "may be decimal or set thousands", "numeric=plt"),
    "thousands and fractions": (
        {"cost": lambda i: f'"{1_000 + 31.5 * i:,.2f}"'}, "'1,000.00' is then 1000", "numeric=cost",
    ),
    "a number for what is missing": (
        {"crp": lambda i: -999 if i % 9 == 0 else i / 8}, "-999 in 27 rows", "missing=-999",
    ),
    "a number for what is missing among large ones": (
        {"creatinine": lambda i: -999 if i % 9 == 0 else 40 + 37 * (i % 100)}, "-999 in 27 rows", "missing=-999",
    ),
    "dates as numbers": ({"seen": lambda i: f"2019{1 + i % 12:02d}{1 + i % 28:02d}"}, "dates (20190101)", "date=seen"),
    "times": ({"seen": lambda i: f"{day(i)} {i % 24:02d}:30"}, "holds dates", "date=seen"),
    "years of two digits": ({"seen": lambda i: day(i)[:6] + day(i)[8:]}, "holds dates", "date=seen"),
    "months by name": (
        {"seen": lambda i: f"{1 + i % 28:02d}-{['Jan', 'Feb', 'Mar'][i % 3]}-2019"}, "holds dates", "date=seen",
    ),
    "dates and words": ({"seen": lambda i: "unknown" if i % 9 == 0 else day(i)}, "'unknown', which", "date=seen"),
    "day or month": (
        {"seen": lambda i: f"{1 + i % 12}/{1 + i // 12 % 12}/2019"}, "day or the month first", "date=seen:%d/%m/%Y",
    ),
    "many texts": ({"ward": lambda i: f"ward {i % 110}"}, "110 different texts", "drop=ward"),
}  # fmt: skip


@pytest.mark.parametrize("what", MESSY)
def test_a_messy_column_is_refused_with_an_option_that_settles_it(tmp_path: Path, what: str) -> None:
    columns, says, option = MESSY[what]
    spec = write(tmp_path, **columns)
    with pytest.raises(DataError, match=re.escape(says)) as error:
        load_source(spec)
    name, _, value = option.partition("=")
    assert re.search(rf"--{name}[ =]{re.escape(value)}", str(error.value)), error.value
    source = load_source(f"{spec}?{option}")
    assert source.columns is not None
    expected = {"age"} if name == "drop" else {"age", *columns}
    assert {*source.columns} == expected  # one input per column: nothing has become a column per value


@pytest.mark.parametrize("what", ["a number for what is missing", "dates as numbers"])
def test_a_node_is_asked_about_numbers_that_it_would_misread(tmp_path: Path, what: str) -> None:
    columns, says, option = MESSY[what]
    agreed = form_of(load_source(f"{write(tmp_path, **columns)}?{option}"))
    spec = f"csv:{tmp_path / 't.csv'}"
    with pytest.raises(DataError, match=re.escape(says)):
        load_new_client(spec, agreed, share=0.25, default_share=0.25)
    found = load_new_client(f"{spec}?{option}", agreed, share=0.25, default_share=0.25)
    assert float(found.source.train.x.take(torch.arange(50)).abs().max()) < 30_000


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


@pytest.mark.parametrize(
    ("text", "decimal", "expected"),
    [
        ("<0.5", ".", (0.5, "")), ("≥ 200", ".", (200, "")), ("1,024", ".", (1024, "")), ("1,024.5", ".", (1024.5, "")),
        ("1.024", ".", (1.024, "")), ("1.024", ",", (1024, "")), ("1.024,5", ",", (1024.5, "")),
        ("1,5", ",", (1.5, "")),
        ("1 024", ".", (1024, "")), ("53.6 mg/l", ".", (53.6, "mg/l")), ("95%", ".", (95, "%")), (".5", ".", (0.5, "")),
        ("-1.5e-3", ".", (-0.0015, "")), ("2.5", ",", (2.5, "")),
    ],
)  # fmt: skip
def test_numbers_as_laboratories_write_them(text: str, decimal: str, expected: tuple[float, str]) -> None:
    assert measured(text, decimal) == expected


@pytest.mark.parametrize("text", ["117/52", "1-2", "I10.4", "3+", "10:30", "1,02", "01.02.2020", "mg", "1,0245", ","])
def test_what_only_looks_like_a_number_is_none(text: str) -> None:
    assert math.isnan(measured(text, ".")[0])


def test_several_units_in_one_column_are_refused() -> None:
    with pytest.raises(DataError, match=r"units 'mg/dl' and 'mg/l'"):
        TableReading.of({"numeric": "crp"}).convert("crp", ["5 mg/l", "3 mg/dl"])


def test_a_column_that_has_no_number_at_all_is_not_read_as_numbers(tmp_path: Path) -> None:
    spec = write(tmp_path, grade=lambda i: "high" if i % 2 else "low")
    with pytest.raises(DataError, match="'grade' has no value that is a number"):
        load_source(f"{spec}?numeric=grade")


def test_words_among_dates_are_missing_and_wrong_dates_are_refused() -> None:
    reading = TableReading.of({"date": "d:%d.%m.%Y"})
    assert reading.convert("d", ["02.01.1970", "unknown", "-"]).tolist() == pytest.approx(
        [1, np.nan, np.nan], nan_ok=True
    )
    with pytest.raises(DataError, match=r"31\.02\.2020"):
        reading.convert("d", ["02.01.1970", "31.02.2020"])


def test_a_label_that_is_no_class_is_refused_with_the_option_that_names_it(tmp_path: Path) -> None:
    rows = [f"{'ab'[i % 2]},{i * 1.5},P{i}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["outcome,crp,pid", *rows]) + "\n")
    with pytest.raises(DataError, match=r"'pid', which is taken for the label as the last column.*--label"):
        load_source(f"csv:{tmp_path / 't.csv'}")
    with pytest.raises(DataError, match=r"'crp', which is taken.*holds fractions \(1\.5\).*--label.*task = regression"):
        load_source(f"csv:{tmp_path / 't.csv'}?drop=pid")
    assert load_source(f"csv:{tmp_path / 't.csv'}?drop=pid", label="crp").task == "regression"
    assert load_source(f"csv:{tmp_path / 't.csv'}?drop=pid", label="outcome").classes == ("a", "b")
    rows[7] = ",1,P7"
    (tmp_path / "t.csv").write_text("\n".join(["outcome,crp,pid", *rows]) + "\n")
    with pytest.raises(DataError, match=r"1 of 60 rows without a value \(lines 9\)"):
        load_source(f"csv:{tmp_path / 't.csv'}?drop=pid", label="outcome")


def test_a_separator_at_the_end_of_every_line_is_no_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a|label|\n" + "".join(f"{i}.5|{i % 2}|\n" for i in range(30)))
    assert load_source(f"csv:{tmp_path / 't.csv'}").columns == ("a",)


def test_dates_of_a_parquet_file_are_refused_and_read_like_those_of_a_csv(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    days = pandas.date_range("2020-01-01", periods=60)
    frame = pandas.DataFrame({"seen": days, "born": days.date, "x": np.arange(60) / 7, "label": ["a", "b"] * 30})
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"--date seen.*--date born"):
        load_source(f"parquet:{tmp_path / 't.parquet'}")
    source = load_source(f"parquet:{tmp_path / 't.parquet'}?date=seen,born")
    first = source.train.x.take(torch.arange(len(source.train)))[:, :2].min(0).values
    assert first.tolist() == pytest.approx([18262, 18262], abs=8)


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
        ({"drop": "a", "numeric": "a"}, "more than one of drop, numeric"),
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
    data = f"{spec}?numeric=crp&date=admitted:%d.%m.%Y&drop=patient_id"
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
    # A table from elsewhere, written otherwise.
    new.write_text("admitted;crp;age\n2012-03-05;0,5 mg/l;61\n")
    with pytest.raises(DataError, match=r"--date admitted|no date of the format"):
        [*predict_file(tmp_path / "run", new, None, 2)]
    otherwise = {"date": "admitted:%Y-%m-%d", "decimal": ",", "numeric": "crp"}
    (third,) = predict_file(tmp_path / "run", new, None, 2, table=otherwise)
    assert third.split("\t")[1:] == first
    # However the DataFrame came about: dates that pandas has read, numbers beside texts.
    read = pandas.DataFrame(
        {"admitted": pandas.to_datetime(["2012-03-05"] * 2), "crp": ["<0.5", 0.5], "age": [61, 61.0]}
    )
    assert np.allclose(result.model.predict_table(read)[["sick", "well"]], table[["sick", "well"]])


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


@pytest.mark.slow
def test_the_command_knows_the_task_that_it_was_told(tmp_path: Path) -> None:
    rows = [f"{i % 7}.5,{3 * i + 40}" for i in range(240)]
    (tmp_path / "t.csv").write_text("\n".join(["age,days", *rows]) + "\n")
    asked = ["data", f"csv:{tmp_path / 't.csv'}", "--label", "days", "--clients", "2", "--partition", "iid"]
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code != 0
    shown = CliRunner().invoke(app, [*asked, "--task", "regression", "--picture", str(tmp_path / "p.svg")])
    assert shown.exit_code == 0, shown.output
    assert "regression of days" in shown.output
