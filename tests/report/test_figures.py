"""Static figures: every one in every format, the same bytes each time, and one sentence without matplotlib."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedframe.errors import DataError, SettingError
from fedframe.report.figures import FIGURES, draw
from fedframe.report.figures.drawing import make_figure
from fedframe.report.page.runs import open_runs
from tests.report.made import made_comparison, made_run

STARTS = {".svg": b"<", ".png": b"\x89PNG", ".pdf": b"%PDF"}


@pytest.fixture(autouse=True)
def no_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made runs have no models to look at."""
    monkeypatch.setattr("fedframe.report.page.build.examined", lambda subject, **_: subject)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose names mean something to LaTeX and to XML."""
    return made_run(tmp_path_factory.mktemp("figures") / "run", names=["$x_1$", "</svg>", "c", "d", "e", "f"])


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_comparison(tmp_path_factory.mktemp("compared") / "all", ("fedavg", "fedetf"), 2)


@pytest.mark.parametrize("suffix", STARTS)
@pytest.mark.parametrize("what", FIGURES)
def test_every_figure_in_every_format(folder: Path, tmp_path: Path, what: str, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = draw([folder], what, tmp_path / f"{what}{suffix}")
    content = path.read_bytes()
    assert content.startswith(STARTS[suffix])
    assert len(content) > 3000
    assert draw([folder], what, tmp_path / f"again{suffix}").read_bytes() == content


@pytest.mark.parametrize("what", FIGURES)
def test_several_methods_in_one_figure(compared: Path, tmp_path: Path, what: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert draw([compared], what, tmp_path / "x.png").stat().st_size > 3000


def test_collapse_that_is_rounding_alone_lies_at_zero_on_an_axis_worth_a_look(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    folder = made_run(tmp_path / "run")
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"nc2_angles": 0.3', '"nc2_angles": 5.8e-09'))
    drawn = make_figure(open_runs([folder]), "collapse")
    (angles,) = [axes for axes in drawn.axes if "angles of class means" in axes.get_title()]
    assert not np.any(angles.lines[0].get_ydata())
    assert angles.get_ylim() == pytest.approx((-0.0005, 0.0105))
    assert all(axes.get_ylim()[0] < 0 < axes.get_ylim()[1] for axes in drawn.axes)  # nearer to 0 is better: show it


@pytest.mark.parametrize("what", ["curves", "partition"])
def test_these_need_no_matplotlib(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = made_run(tmp_path / "run")
    assert draw([folder], what) == folder / f"{what}.svg"
    with pytest.raises(SettingError, match=r"pip install 'fedframe\[plot\]'"):
        draw([folder], what, tmp_path / "x.pdf")


def test_curves_over_seeds_have_the_same_lines_in_every_format(compared: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    text = draw([compared], "curves", tmp_path / "curves.svg").read_text()
    names = re.findall(r">(fedavg|fedetf)[^<]*<", text)
    assert sorted(names) == ["fedavg", "fedetf"]  # a line per method, not one per run


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    (folder / "drift.jsonl").unlink()
    with pytest.raises(DataError, match="--measure drift"):
        draw([folder], "drift", tmp_path / "x.png")
    with pytest.raises(SettingError, match="did you mean 'clients'"):
        draw([folder], "client")
    with pytest.raises(SettingError, match="SVG, PNG or PDF"):
        draw([folder], "curves", tmp_path / "x.jpg")
