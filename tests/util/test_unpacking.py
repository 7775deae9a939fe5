"""Files that unpack to far more than they are: refused by what they declare, and where they lie at the limit."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

import fedframe.util.unpacking as unpacking
from fedframe.data import load_source
from fedframe.data.files import extract, read_bytes
from fedframe.errors import DataError
from fedframe.experiments.grid.archive import _read
from fedframe.util.unpacking import gunzip

HUGE = 10**12


def bomb(path: Path, member: str) -> Path:
    """An archive that says of its one member that it is a terabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, bytes(1000))
        archive.infolist()[0].file_size = HUGE
    return path


def test_archives_are_refused_by_the_size_that_they_declare(tmp_path: Path) -> None:
    npz = bomb(tmp_path / "x.npz", "x_train.npy")
    with pytest.raises(DataError, match=r"x\.npz has .* bytes and unpacks to 1,000,000,000,000, .*np\.savez"):
        load_source(f"npz:{npz}")
    with pytest.raises(DataError, match="unpacks to 1,000,000,000,000"):
        _read(bomb(tmp_path / "x.cells.zip", "a/summary.json"))
    with pytest.raises(DataError, match="unpacks to 1,000,000,000,000"):
        extract(bomb(tmp_path / "gzip.zip", "gzip/a.gz"), ["gzip/a.gz"], tmp_path)


def test_a_parquet_file_is_refused_by_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is repeated a hundred million times takes a few bytes."""
    monkeypatch.setattr(unpacking, "SMALL", 1 << 16)
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(400_000, np.int8)), arrow.array([0.5]))
    parquet.write_table(arrow.table({"a": column}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 10**4
    with pytest.raises(DataError, match=r"unpacks to 3,200,000, .* save it as csv"):
        load_source(f"parquet:{tmp_path / 'x.parquet'}")


def test_gzip_is_unpacked_up_to_the_limit_whatever_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "SMALL", 1 << 16)
    packed = gzip.compress(bytes(1 << 20))[:-4] + b"\1\0\0\0"  # one byte, it says
    (tmp_path / "x.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"x\.gz has .* more than 100 times as many"):
        read_bytes(tmp_path / "x.gz")
    two = gzip.compress(b"one") + gzip.compress(b"two") + bytes(8)
    assert gunzip(two, tmp_path) == gzip.decompress(two) == b"onetwo"
    for broken in (two[:10], gzip.compress(b"one" * 99)[:-5], b"no gzip at all"):
        (tmp_path / "y.gz").write_bytes(broken)
        with pytest.raises(DataError, match=r"y\.gz is damaged or cut short"):
            read_bytes(tmp_path / "y.gz")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_one_long_text_does_not_make_all_rows_as_long(tmp_path: Path, kind: str) -> None:
    """Four thousand rows beside one cell of 100,000 characters would be 2 GB."""
    texts, path = ["x" * 100_000, *["y"] * 4_000], tmp_path / f"x.{kind}"
    if kind == "csv":
        path.write_text("a,b,label\n" + "".join(f"{text},1,{i % 2}\n" for i, text in enumerate(texts)))
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"a": texts, "label": [i % 2 for i in range(len(texts))]}), path)
    with pytest.raises(DataError, match=r"column 'a' has a text of 100,000 characters, .* 2 GB; .*--drop a"):
        load_source(f"{kind}:{path}")
