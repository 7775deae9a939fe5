"""What the curves and the partition show: every cell and point, and odd names and numbers without harm."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from fedframe.report.figures.drawing import write_figure
from fedframe.report.figures.lines import accuracy, spread
from fedframe.report.figures.partition import partition_figure
from fedframe.report.figures.style import paper_style, printable, shorten
from fedframe.report.tables import short

ODD = "a<b> & \"c\" 'd' \x00 \ud800 é 北 $x_1$"


def texts(figure: Figure) -> list[str]:
    """All that is written in a figure, lines joined."""
    with paper_style():
        figure.draw_without_rendering()
    found = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible()]
    return [text.get_text().replace("\n", " ") for text in found if text.get_text()]


def cells(figure: Figure) -> Any:
    """Counts of the heat map, (clients, classes); empty cells are masked."""
    return figure.axes[0].images[0].get_array().T  # type: ignore[union-attr]


def parse(figure: Figure, path: Path) -> ET.Element:
    write_figure(figure, path)
    root = ET.fromstring(path.read_text("utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return root


def counts(clients: int, classes: int, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.random.default_rng(seed).poisson(0.7, (clients, classes)) * 7


def drawn(series: dict[str, list[tuple[float, float | None]]], title: str = "t", caption: str = "") -> Figure:
    """Lines over rounds of shares, as the page gives them: round, seconds, megabytes, mean, low, high."""
    lines = [
        {"label": label, "points": [[x, 0, 0, y, None, None] for x, y in points]} for label, points in series.items()
    ]
    panel = {"key": "accuracy", "label": "accuracy", "series": lines, "share": True}
    with paper_style():
        return accuracy(printable({"panels": [panel], "title": title, "caption": caption}))


def line(axes: Axes, label: str) -> Any:
    return next(each for each in axes.lines if each.get_label() == label)


def end_labels(figure: Figure) -> list[Annotation]:
    return [text for text in figure.axes[0].texts if isinstance(text, Annotation)]


@pytest.mark.slow
def test_partition_shows_every_cell_with_its_count() -> None:
    table = np.array([[5, 0, 1234], [0, 70, 8]])
    figure = partition_figure(table, ["cat", "dog", "eel"], "Pets", ["Ann", "Bob"])
    assert np.array_equal(cells(figure).filled(0), table)
    assert np.ma.count(cells(figure)) == 4
    shown = texts(figure)
    assert {"5", "1,234", "70", "8", "cat", "dog", "eel", "Ann", "Bob", "Pets"} <= set(shown)
    assert "2 clients, 3 classes, 1,317 samples. A client has 78 to 1,239 samples (median 658) of 2 classes." in shown


@pytest.mark.slow
def test_partition_has_the_sizes_of_clients_and_classes_as_bars() -> None:
    _, clients, classes, _ = partition_figure(np.array([[5, 0, 1234], [0, 70, 8]]), list("abc"), "t").axes
    assert [bar.get_height() for bar in clients.patches] == [1239, 78]  # type: ignore[attr-defined]
    assert [bar.get_width() for bar in classes.patches] == [5, 70, 1242]  # type: ignore[attr-defined]
    assert [text.get_text() for text in classes.texts] == ["5", "70", "1.2k"]


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (100, 10), (240, 60), (40, 120)])
def test_partition_draws_all_clients_while_they_fit(clients: int, classes: int) -> None:
    table = counts(clients, classes)
    table[0, 0] = 1
    figure = partition_figure(table, [f"c{i}" for i in range(classes)], "t")
    assert np.array_equal(cells(figure).filled(0), table)
    assert "is drawn" not in " ".join(texts(figure))


@pytest.mark.slow
def test_partition_of_many_clients_is_thinned_and_says_so() -> None:
    table = counts(1000, 10)
    figure = partition_figure(table, [str(i) for i in range(10)], "t")
    assert np.array_equal(cells(figure).filled(0), table[::5])
    assert "One client in 5 is drawn." in " ".join(texts(figure))
    assert "1,000 clients" in " ".join(texts(figure))
    assert [bar.get_width() for bar in figure.axes[2].patches] == table.sum(0).tolist()  # type: ignore[attr-defined]
    assert figure.get_size_inches()[0] < 7


@pytest.mark.slow
def test_partition_of_many_classes_adds_neighbours_up_and_says_so() -> None:
    table = counts(6, 1000)
    figure = partition_figure(table, [f"n{i}" for i in range(1000)], "t")
    assert np.array_equal(cells(figure).filled(0), np.add.reduceat(table, range(0, 1000, 9), axis=1))
    assert "Each row adds up 9 classes." in " ".join(texts(figure))


@pytest.mark.slow
def test_names_of_clients_and_classes_do_not_cover_each_other() -> None:
    figure = partition_figure(
        counts(90, 90), [f"class {i}" for i in range(90)], "t", [f"client {i}" for i in range(90)]
    )
    figure.draw_without_rendering()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert len(boxes) > 10
        assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


@pytest.mark.slow
def test_largest_partition_stays_a_small_file(tmp_path: Path) -> None:
    dense = np.random.default_rng(0).integers(1, 500, (1000, 120))
    write_figure(partition_figure(dense, [str(i) for i in range(120)], "t"), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").stat().st_size < 200_000


@pytest.mark.slow
def test_partition_survives_odd_names_and_empty_clients(tmp_path: Path) -> None:
    table = np.array([[0, 0], [0, 0], [3, 0]])
    figure = partition_figure(table, [ODD, "x" * 300], ODD, [ODD, "", "y" * 300])
    shown = texts(figure)
    assert any(text.startswith("a<b> & \"c\" 'd' □ □") for text in shown)
    assert all(len(text) < 200 for text in shown)
    parse(figure, tmp_path / "p.svg")
    parse(partition_figure(np.zeros((2, 2)), ["a", "b"], ""), tmp_path / "p.svg")


def test_partition_refuses_a_table_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="does not fit 3 classes"):
        partition_figure(np.ones((2, 2)), ["a", "b", "c"], "t")


@pytest.mark.slow
def test_curves_show_every_line_with_its_last_value() -> None:
    series: dict[str, Any] = {
        "FedAvg": [(r, 0.5 + 0.001 * r) for r in range(101)],
        "FedETF": [(0, 0.4), (100, 0.71)],
    }
    figure = drawn(series, "Title", "Three seeds.")
    axes = figure.axes[0]
    assert [len(line(axes, name).get_xdata()) for name in series] == [101, 2]
    assert line(axes, "FedAvg").get_ydata() == pytest.approx([50 + 0.1 * r for r in range(101)])
    assert {"FedAvg 60.0", "FedETF 71.0", "Title", "round", "accuracy (%)", "Three seeds.", "0", "100"} <= set(
        texts(figure)
    )


@pytest.mark.slow
def test_curves_leave_a_gap_where_a_value_is_missing() -> None:
    figure = drawn({"a": [(1, 0.1), (2, None), (3, 0.2), (4, 0.3), (5, None)]})
    assert [math.isnan(y) for y in line(figure.axes[0], "a").get_ydata()] == [False, True, False, False, True]
    assert "a 30.00" in texts(figure)


@pytest.mark.slow
@pytest.mark.parametrize("y", [0.0, 0.1, -3.0, 1e-9, 1e12])
def test_curves_with_one_point_or_a_flat_line(y: float, tmp_path: Path) -> None:
    figure = drawn({"one": [(3, y)], ODD: [(1, y), (5, y)]}, ODD, ODD * 20)
    parse(figure, tmp_path / "c.svg")


@pytest.mark.slow
def test_curves_labels_do_not_overlap_and_stay_in_the_figure() -> None:
    figure = drawn({f"method {i}": [(0, 0.0), (1, 0.5 + 0.0001 * i)] for i in range(30)})
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in end_labels(figure)), key=lambda box: box.y0)
    assert len(boxes) == 30
    assert all(low.y1 <= high.y0 for low, high in itertools.pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height for box in boxes)


@pytest.mark.slow
def test_long_curve_keeps_its_spike_and_ends_in_a_small_file(tmp_path: Path) -> None:
    figure = drawn({"a": [(float(i), 0.1 if i != 5000 else 0.9) for i in range(10_000)]})
    points = line(figure.axes[0], "a").get_xydata()
    assert (points[0].tolist(), points[5000].tolist(), points[-1].tolist()) == ([0, 10], [5000, 90], [9999, 10])
    write_figure(figure, tmp_path / "c.svg")
    assert (tmp_path / "c.svg").stat().st_size < 30_000


def test_labels_that_collide_are_moved_apart_as_little_as_possible() -> None:
    assert spread([10, 50], 0, 100, 10) == [10, 50]
    assert spread([50, 52], 0, 100, 10) == [46, 56]
    assert spread([52, 50], 0, 100, 10) == [56, 46]
    assert spread([50, 50], 0, 100, 10) == [55, 45]  # the first on top
    assert spread([99, 100], 0, 100, 10) == [90, 100]
    assert spread([0, 1, 2], 0, 100, 10) == [0, 10, 20]


def test_counts_are_written_short_and_names_cut() -> None:
    numbers = (0, 999, 1000, 1234, 9960, 45_600, 999_600, 5_120_000)
    assert [short(n) for n in numbers] == ["0", "999", "1k", "1.2k", "10k", "46k", "1M", "5.1M"]
    assert shorten("short") == "short"
    assert shorten("much too long a name") == "much too long a…"
    assert printable({"a\x00": ["<\ud800>", 3, None]}) == {"a□": ["<□>", 3, None]}


def python(code: str) -> str:
    """What a Python process of its own prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.slow
def test_importing_the_table_is_cheap_and_only_figures_load_matplotlib() -> None:
    heavy = "print({'torch', 'rich', 'matplotlib'} & set(sys.modules))"
    assert python(f"import sys, fedframe.report.tables; {heavy}") == "set()"
    pages = "import sys, fedframe.cli, fedframe.report.page.build, fedframe.report.watch"
    assert python(f"{pages}; print('matplotlib' in sys.modules)") == "False"


@pytest.mark.slow
def test_figures_need_no_display_and_leave_the_state_of_matplotlib_alone(tmp_path: Path) -> None:
    code = f"""
import sys, matplotlib, numpy as np
from pathlib import Path
from fedframe.report.figures.drawing import write_figure
from fedframe.report.figures.partition import partition_figure
write_figure(partition_figure(np.eye(3), list("abc"), "t"), Path({str(tmp_path / "p.svg")!r}))
print("matplotlib.pyplot" in sys.modules, matplotlib.rcParams == matplotlib.rcParamsOrig)
"""
    assert python(code) == "False True"
