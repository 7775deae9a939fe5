"""Smoothed lines: means of the last evaluations, said in the caption, and refused where there are no lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedframe.errors import SettingError
from fedframe.report.figures import draw
from fedframe.report.figures.drawing import make_figure
from fedframe.report.figures.smoothing import smooth, trailing_means
from fedframe.report.page.runs import open_runs
from tests.report.made import made_run


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.floats(-10, 10)), max_size=20), st.integers(1, 6))
def test_trailing_means_equal_a_plain_loop(values: list[float | None], count: int) -> None:
    found = trailing_means(values, count)
    for i, value in enumerate(values):
        last = [values[j] for j in range(len(values)) if i - count < j <= i]
        known = [each for each in last if each is not None]
        assert (found[i] is None) == (value is None)
        if found[i] is not None:
            assert found[i] == pytest.approx(sum(known) / len(known))


def test_mean_of_one_evaluation_is_the_line_itself() -> None:
    data = {"panels": [{"series": [{"points": [[1, 0, 0, 0.5, 0.4, 0.6]]}]}], "caption": "c"}
    assert smooth(data, 1) is data


@pytest.mark.slow
def test_lines_are_smoothed_and_the_caption_says_so(tmp_path: Path) -> None:
    runs = open_runs([made_run(tmp_path / "run")])
    plain, smoothed = make_figure(runs, "curves"), make_figure(runs, "curves", 3)
    before, after = (np.asarray(figure.axes[0].lines[0].get_ydata(), float).tolist() for figure in (plain, smoothed))
    assert after == pytest.approx(trailing_means(before, 3))
    assert "means of the last 3 evaluations" in smoothed.get_supxlabel().replace("\n", " ")


@pytest.mark.slow
def test_smoothing_that_cannot_be_is_refused(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    with pytest.raises(SettingError, match="confusion has no lines over rounds; use it with --what curves"):
        draw([folder], "confusion", tmp_path / "x.svg", smoothed=3)
    with pytest.raises(SettingError, match="use smooth = 5"):
        draw([folder], "curves", tmp_path / "x.svg", smoothed=0)
