"""The partition table fits the terminal and says what it leaves out."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from fedframe.report.tables import PartitionTable, partition_table


def printed(table: PartitionTable, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    assert all(len(line) <= width for line in text.splitlines())
    return text


def test_small_table_is_shown_whole() -> None:
    text = printed(partition_table(np.array([[5, 0], [0, 1200]]), ["cat", "dog"], ["Ann", "[b]Bob"]))
    head, ann, bob, summary = [line.split() for line in text.splitlines()]
    assert head == ["client", "samples", "classes", "cat", "dog"]
    assert ann == ["Ann", "5", "▏", "1", "5", "·"]
    assert bob == ["[b]Bob", "1,200", "██████████", "1", "·", "1200"]
    assert " ".join(summary) == "5 to 1,200 samples a client, median 602."


def test_long_table_is_shortened_and_says_so() -> None:
    table = np.ones((50, 30), dtype=int)
    text = printed(partition_table(table, [f"class {i}" for i in range(30)]), 200)
    assert len(text.splitlines()) == 23  # heading, 20 clients, totals, summary
    assert "Shown: the first 20 of 50 clients and 20 of 30 classes." in text
    assert text.splitlines()[21].split()[:3] == ["all", "1,500", "50"]


def test_table_fits_ten_classes_in_80_columns() -> None:
    table = np.full((10, 10), 4567)
    text = printed(partition_table(table, [f"long name {i}" for i in range(10)]), 80)
    assert "Shown" not in text
    assert text.count("4567") == 100
    assert text.split()[3:13] == [str(i) for i in range(10)]  # cut to four letters, the names would be the same


def test_sizes_may_cover_more_clients_than_the_table() -> None:
    table = np.ones((30, 2), dtype=int)
    text = printed(partition_table(table, ["a", "b"], None, np.full(5000, 2)))
    assert "Shown: the first 20 of 5,000 clients." in text
    assert text.splitlines()[-2].split() == ["all", "10,000"]


def test_empty_clients_and_a_narrow_terminal_are_fine() -> None:
    assert "0 to 0 samples a client" in printed(partition_table(np.zeros((3, 4), dtype=int), list("abcd")), 40)


def test_table_that_does_not_fit_its_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit 3 classes"):
        partition_table(np.ones((2, 2)), ["a", "b", "c"])
