from __future__ import annotations

import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch

from fedframe.data import encode_rows, load_source, normalised
from fedframe.errors import DataError, SettingError
from tests.data.conftest import sentence

HEADER = "age,sex,hospital,weight,target"
ROWS = [f"{20 + i},{'fm'[i % 2]},h{i % 3},{'' if i == 4 else 50 + i},{'yes' if i % 4 else 'no'}" for i in range(20)]


def write(folder: Path, text: str, name: str = "t.csv") -> str:
    (folder / name).write_text(text)
    return f"csv:{folder / name}"


def test_a_table_becomes_vectors_labels_and_clients(tmp_path: Path) -> None:
    spec = write(tmp_path, "\n".join([HEADER, *ROWS]))
    write(tmp_path, "\n".join([HEADER, "30,x,h9,,no", "31,f,h0,60,yes"]), "test.csv")
    source = load_source(f"{spec}?test=test.csv")
    assert source.columns == ("age", "sex=f", "sex=m", "weight")
    assert source.classes == ("no", "yes")
    assert source.user_names == ("h0", "h1", "h2", "h9")
    x = source.train.x.take(torch.arange(20))
    assert x[1].tolist() == [21, 0, 1, 51]
    known = [50 + i for i in range(20) if i != 4]
    assert float(x[4, 3]) == pytest.approx(sum(known) / 19)
    assert source.test is not None
    unseen = source.test.x.take(torch.tensor([0]))[0]
    assert unseen[:3].tolist() == [30, 0, 0]  # a text that training has never seen is all zeros
    assert float(unseen[3]) == pytest.approx(sum(known) / 19)


def test_means_and_texts_come_from_the_training_rows_alone(tmp_path: Path) -> None:
    rows = ["1,a,0", "1,a,0", "1,a,1", "1,a,1", *(f"{'' if i % 2 else 3},b,{i % 2}" for i in range(20))]
    source = load_source(write(tmp_path, "\n".join(["x,t,y", *rows])), test_share=0.5)
    assert source.columns is not None
    assert source.columns[0] == "x"
    x = source.train.x.take(torch.arange(len(source.train)))
    assert float(source.mean[0]) == pytest.approx(float(x[:, 0].mean()), rel=1e-5)


def test_new_rows_are_encoded_like_the_training_rows(tmp_path: Path) -> None:
    spec = write(tmp_path, "\n".join([HEADER, *ROWS]))
    source = load_source(spec)
    assert source.columns is not None
    rows: dict[str, list[object]] = {"age": [25, None], "sex": ["m", "other"], "weight": ["51.5", ""]}
    raw = encode_rows(rows, source.columns, source.mean)
    assert raw[0].tolist() == [25, 0, 1, 51.5]
    assert raw[1].tolist() == [float(source.mean[0]), 0, 0, float(source.mean[3])]
    assert normalised(raw, source.mean, source.std)[1, 0] == 0
    columns, mean = source.columns, source.mean
    assert "lacks the column 'sex'" in sentence(
        lambda: encode_rows({"age": [1], "weight": [1]}, columns, mean), DataError
    )
    assert "held numbers" in sentence(lambda: encode_rows({**rows, "age": ["x", "y"]}, columns, mean), DataError)


def test_label_and_client_columns_can_be_chosen(tmp_path: Path) -> None:
    spec = write(tmp_path, "\n".join([HEADER, *ROWS]))
    source = load_source(spec, label="sex", client_column="target")
    assert source.classes == ("f", "m")
    assert source.user_names == ("no", "yes")
    assert "hospital=h0" in (source.columns or ())
    assert "did you mean 'hospital'" in sentence(lambda: load_source(spec, client_column="hospitl"), SettingError)
    assert "no such column" in sentence(lambda: load_source(spec, label="zzz"), SettingError)


def test_the_last_column_is_the_label_where_none_has_its_name(tmp_path: Path) -> None:
    source = load_source(write(tmp_path, "a;b;c\n" + "\n".join(f"{i};1;{i % 2}" for i in range(10))))
    assert source.columns == ("a", "b")
    assert source.classes == ("0", "1")
    assert source.std[1] == 1  # a constant column


def test_a_column_name_may_hold_an_equals_sign(tmp_path: Path) -> None:
    source = load_source(write(tmp_path, "a=b,c=d,y\n" + "\n".join(f"{i},t=u,{i % 2}" for i in range(10))))
    assert source.columns == ("a=b", "c=d=t=u")
    assert encode_rows({"a=b": [4], "c=d": ["t=u"]}, source.columns, source.mean).tolist() == [[4.0, 1.0]]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "header line"),
        ("a,y", "is empty"),
        ("a,y\n1,2\n1,2,3", "line 3"),
        ("a,a\n1,2", "each once"),
        ("a,y\n1,0\n2,", "rows without a value"),
        ("a,y\ninf,0\n2,1", "infinity"),
        ("y\n1\n2", "no column besides"),
        ('a,y\n"1,0\n2,1', "cannot be read as csv"),
        ("name,y\n" + "\n".join(f"n{i},{i % 2}" for i in range(1001)), "1,001 different texts"),
    ],
)
def test_bad_tables_end_in_a_sentence(tmp_path: Path, text: str, part: str) -> None:
    spec = write(tmp_path, text)
    found = sentence(lambda: load_source(spec), DataError)
    assert part in found
    assert "t.csv" in found


def test_a_test_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    spec = write(tmp_path, "a,y\n1,0\n2,1")
    write(tmp_path, "b,y\n1,0\n2,1", "test.csv")
    assert "same columns" in sentence(lambda: load_source(f"{spec}?test=test.csv"), DataError)


@pytest.mark.slow
def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    table = {
        "age": [float(i) if i else None for i in range(10)],
        "sex": ["f", None] * 5,
        "ok": [True, False] * 5,
        "label": [i % 2 for i in range(10)],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    source = load_source(f"parquet:{tmp_path}/t.parquet", test_share=0.2)
    assert source.columns == ("age", "sex=f", "ok")
    assert source.classes == ("0", "1")
    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[:-20])
    assert "cut.parquet" in sentence(lambda: load_source(f"parquet:{tmp_path}/cut.parquet"), DataError)


def test_a_missing_pyarrow_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.parquet").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "fedframe[parquet]" in sentence(lambda: load_source(f"parquet:{tmp_path}/t.parquet"), DataError)
