"""The pictures are valid XML, show every cell and point, and survive odd names and numbers."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from fedframe.report.canvas import clean, num, shorten, width_of, wrap
from fedframe.report.scale import labels, short, ticks
from fedframe.report.svg import curves_picture, partition_picture

NS = "{http://www.w3.org/2000/svg}"
ODD = "a<b> & \"c\" 'd' \x00 \ud800 é 北"


def parse(svg: str) -> ET.Element:
    root = ET.fromstring(svg)
    assert root.tag == f"{NS}svg"
    # "nan" and "inf" must not be in any attribute; texts may say what they like
    for element in root.iter():
        for value in element.attrib.values():
            assert not re.search(r"\b(nan|inf)\b", value, re.IGNORECASE)
    assert "var(" not in svg
    assert "prefers-color-scheme:dark" in svg
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for text in root.iter(f"{NS}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    return root


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{NS}text")]


def cells(root: ET.Element) -> int:
    """How many cells are painted; without gaps, one stroke paints several."""
    paths = [p.attrib["d"] for p in root.iter(f"{NS}path") if p.attrib.get("class") == "ff-run"]
    return sum(math.ceil(float(length)) for path in paths for length in re.findall(r"h([\d.]+)", path))


def lines(root: ET.Element) -> list[str]:
    return [p.attrib["d"] for p in root.iter(f"{NS}path") if p.attrib.get("stroke-width") == "2"]


def counts(clients: int, classes: int, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.random.default_rng(seed).poisson(0.7, (clients, classes)) * 7


def test_partition_shows_every_cell_with_its_count() -> None:
    table = np.array([[5, 0, 1234], [0, 70, 8]])
    root = parse(partition_picture(table, ["cat", "dog", "eel"], "Pets", ["Ann", "Bob"]))
    assert cells(root) == 4
    shown = texts(root)
    assert {"5", "1,234", "70", "8", "cat", "dog", "eel", "Ann", "Bob", "Pets"} <= set(shown)
    assert "2 clients, 3 classes, 1,317 samples. A client has 78 to 1,239 samples (median 658) of 2 classes." in (
        " ".join(shown)
    )


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (100, 10), (240, 60), (40, 120)])
def test_partition_draws_all_clients_while_they_fit(clients: int, classes: int) -> None:
    table = counts(clients, classes)
    table[0, 0] = 1
    root = parse(partition_picture(table, [f"c{i}" for i in range(classes)], "t"))
    assert cells(root) == (table > 0).sum()
    assert "is drawn" not in " ".join(texts(root))


def test_partition_of_many_clients_is_thinned_and_says_so() -> None:
    table = counts(1000, 10)
    svg = partition_picture(table, [str(i) for i in range(10)], "t")
    root = parse(svg)
    assert cells(root) == (table[::5] > 0).sum()
    assert "One client in 5 is drawn." in " ".join(texts(root))
    assert "1,000 clients" in " ".join(texts(root))
    assert float(root.attrib["width"]) < 1000


def test_partition_of_many_classes_adds_neighbours_up_and_says_so() -> None:
    table = counts(6, 1000)
    root = parse(partition_picture(table, [f"n{i}" for i in range(1000)], "t"))
    joined = np.add.reduceat(table, range(0, 1000, 9), axis=1)
    assert cells(root) == (joined > 0).sum()
    assert "Each row adds up 9 classes." in " ".join(texts(root))


def test_largest_partition_stays_a_small_file() -> None:
    dense = np.random.default_rng(0).integers(1, 500, (1000, 120))
    assert len(partition_picture(dense, [str(i) for i in range(120)], "t")) < 200_000


def test_partition_survives_odd_names_and_empty_clients() -> None:
    table = np.array([[0, 0], [0, 0], [3, 0]])
    shown = texts(parse(partition_picture(table, [ODD, "x" * 300], ODD, [ODD, "", "y" * 300])))
    assert any(text.startswith("a<b> & \"c\" 'd' □ □") for text in shown)
    assert all(len(text) < 200 for text in shown)
    parse(partition_picture(np.zeros((2, 2)), ["a", "b"], ""))


def test_partition_refuses_a_table_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="does not fit 3 classes"):
        partition_picture(np.ones((2, 2)), ["a", "b", "c"], "t")


def test_curves_show_every_line_with_its_last_value() -> None:
    series = {"FedAvg": [(r, 0.5 + 0.001 * r) for r in range(101)], "FedETF": [(0, 0.4), (100, 0.71)]}
    root = parse(curves_picture(series, "Title", "round", "accuracy", "Three seeds."))
    assert len(lines(root)) == 2
    assert [path.count("L") for path in lines(root)] == [100, 1]
    shown = texts(root)
    assert {
        "FedAvg 0.600",
        "FedETF 0.710",
        "Title",
        "round",
        "accuracy",
        "Three seeds.",
        "0",
        "100",
    } <= set(shown)


def test_curves_leave_a_gap_where_a_value_is_missing() -> None:
    nan = math.nan
    root = parse(curves_picture({"a": [(1, 1.0), (2, nan), (3, 2.0), (4, 3.0), (5, nan)]}, "t", "x", "y", ""))
    assert lines(root)[0].count("M") == 2
    assert "a 3.000" in texts(root)


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(1, math.nan)]}, {"a": [(math.inf, 1.0)]}])
def test_curves_without_values_say_so(series: dict[str, list[tuple[float, float]]]) -> None:
    assert "nothing measured yet" in texts(parse(curves_picture(series, "t", "x", "y", "")))


@pytest.mark.parametrize("y", [0.0, 0.1, -3.0, 1e-9, 1e12])
def test_curves_with_one_point_or_a_flat_line(y: float) -> None:
    parse(curves_picture({"one": [(3, y)], ODD: [(1, y), (5, y)]}, ODD, ODD, ODD, ODD * 20))


def test_curves_labels_do_not_overlap_and_stay_on_the_card() -> None:
    series = {f"method {i}": [(0, 0.0), (1, 50 + 0.01 * i)] for i in range(30)}
    root = parse(curves_picture(series, "t", "x", "y", ""))
    heights = sorted(float(e.attrib["y"]) for e in root.iter(f"{NS}text") if (e.text or "").startswith("method"))
    assert len(heights) == 30
    assert min(np.diff(heights)) > 14.9


def test_long_curve_is_thinned_but_keeps_its_spike_and_ends() -> None:
    points = [(float(i), 1.0 if i != 5000 else 9.0) for i in range(10_000)]
    svg = curves_picture({"a": points}, "t", "x", "y", "")
    path = lines(parse(svg))[0]
    assert path.count("L") < 320
    heights = [float(p.split()[1]) for p in path[1:].split("L")]
    assert heights.count(min(heights)) == 1
    assert len(svg) < 10_000


def test_ticks_are_round_and_cover_the_values() -> None:
    assert ticks(0.123, 0.87, 6) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(1, 5, 8, whole=True) == [1, 2, 3, 4, 5]
    assert ticks(7, 7, 5)[0] < 7 < ticks(7, 7, 5)[-1]
    assert labels([0.0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert labels([0, 50_000]) == ["0", "50,000"]
    assert [short(n) for n in (0, 999, 1000, 1234, 9960, 45_600, 999_600, 5_120_000)] == [
        "0",
        "999",
        "1k",
        "1.2k",
        "10k",
        "46k",
        "1M",
        "5.1M",
    ]


def test_text_is_measured_cut_and_wrapped() -> None:
    assert width_of("WWW") > width_of("iii")
    assert shorten("short", 100) == "short"
    assert shorten("much too long a name", 60).endswith("…")
    assert shorten("x", 0) == "…"
    assert " ".join(wrap("one two three four", 60)) == "one two three four"
    assert wrap("", 60) == []
    assert clean('<&">') == "&lt;&amp;&quot;&gt;"
    assert [num(v) for v in (1.0, 0.125, -0.001, 10.5)] == ["1", "0.12", "0", "10.5"]


def test_importing_the_pictures_and_tables_is_cheap() -> None:
    code = "import sys, fedframe.report.svg, fedframe.report.tables; print({'torch', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
