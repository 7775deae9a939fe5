"""Static figures: every one in every format, and the same bytes each time."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedframe.errors import DataError, SettingError
from fedframe.report.figures import FIGURES, draw
from fedframe.report.figures.drawing import make_figure
from fedframe.report.page.runs import open_runs
from tests.report.made import made_comparison, made_run

pytestmark = pytest.mark.slow  # trains many small runs

STARTS = {".svg": b"<", ".png": b"\x89PNG", ".pdf": b"%PDF"}


@pytest.fixture(autouse=True)
def no_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made runs have no models to look at."""
    monkeypatch.setattr("fedframe.report.figures.drawing.examined", lambda subject, **_: subject)


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
    path = draw([folder], what, tmp_path / f"{what}{suffix}")
    content = path.read_bytes()
    assert content.startswith(STARTS[suffix])
    assert len(content) > 3000
    assert draw([folder], what, tmp_path / f"again{suffix}").read_bytes() == content


@pytest.mark.parametrize("what", FIGURES)
def test_several_methods_in_one_figure(compared: Path, tmp_path: Path, what: str) -> None:
    assert draw([compared], what, tmp_path / "x.png").stat().st_size > 3000


def test_collapse_that_is_rounding_alone_lies_at_zero_on_an_axis_worth_a_look(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"nc2_angles": 0.3', '"nc2_angles": 5.8e-09'))
    drawn = make_figure(open_runs([folder]), "collapse")
    (angles,) = [axes for axes in drawn.axes if "angles of class means" in axes.get_title()]
    assert not np.any(angles.lines[0].get_ydata())
    assert angles.get_ylim() == pytest.approx((-0.0005, 0.0105))
    assert all(axes.get_ylim()[0] < 0 < axes.get_ylim()[1] for axes in drawn.axes)  # nearer to 0 is better: show it


def test_curves_over_seeds_have_the_same_lines_in_every_format(compared: Path, tmp_path: Path) -> None:
    text = draw([compared], "curves", tmp_path / "curves.svg").read_text()
    names = re.findall(r">(fedavg|fedetf)[^<]*<", text)
    assert sorted(names) == ["fedavg", "fedavg", "fedetf", "fedetf"]  # a line per method in each panel, not one per run


def test_curves_without_scores_show_the_loss_and_say_so(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().replace('"generic"', '"x"').replace('"client"', '"y"')
    (folder / "metrics.jsonl").write_text(lines)
    drawn = make_figure(open_runs([folder]), "curves")
    assert drawn.axes[0].get_ylabel() == "training loss"
    assert "run it with --eval-every 1" in drawn.get_supxlabel()
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(DataError, match="No round is finished yet"):
        draw([folder], "curves", tmp_path / "x.svg")


def test_curves_on_validation_data_say_so(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / method, method=method, validate_share=0.2) for method in ("fedavg", "fedprox")]
    (alone,) = make_figure(open_runs(folders[:1]), "curves").axes
    assert alone.lines[0].get_label() == "validation data"
    both = make_figure(open_runs(folders), "curves")
    assert both.axes[0].get_title(loc="left") == "Shared model, validation data"
    assert "(generic accuracy: shared model, validation data)" in both.get_supxlabel().replace("\n", " ")


def test_curves_over_seeds_have_bands(compared: Path) -> None:
    drawn = make_figure(open_runs([compared]), "curves")
    assert [len(axes.collections) for axes in drawn.axes] == [2, 2]
    assert "95 % confidence interval" in drawn.get_supxlabel().replace("\n", " ")


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    (folder / "drift.jsonl").unlink()
    with pytest.raises(DataError, match="--measure drift"):
        draw([folder], "drift", tmp_path / "x.png")
    with pytest.raises(SettingError, match="did you mean 'clients'"):
        draw([folder], "client")
    with pytest.raises(SettingError, match="SVG, PNG or PDF"):
        draw([folder], "curves", tmp_path / "x.jpg")
