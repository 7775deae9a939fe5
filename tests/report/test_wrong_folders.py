"""What is no run, or no place for a page, ends in one sentence, and nothing is written anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedframe
from fedframe.analysis import examine
from fedframe.cli import app
from fedframe.errors import FedframeError
from fedframe.report.figures import draw
from fedframe.report.page.build import write_page
from tests.helpers import blobs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds two runs."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        fedframe.run("fedavg", data=blobs(), model="mlp:8", rounds=1, seed=seed, out=folder / str(seed), progress=False)
    return folder


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.slow
def test_a_folder_of_runs_is_not_searched(runs: Path) -> None:
    before = files(runs)
    for make in (write_page, lambda folders: draw(folders, "confusion")):
        with pytest.raises(FedframeError, match=r"is not a run folder but holds 2 runs; name them: .*0 .*1 \.\.\."):
            make([runs])
    with pytest.raises(FedframeError, match="is not a run folder"):
        write_page([runs.parent])  # deeper ones are not even counted
    assert files(runs) == before


@pytest.mark.parametrize("look", [lambda p: write_page([p]), lambda p: draw([p], "curves"), examine])
def test_settings_of_something_else_are_named(tmp_path: Path, look: Callable[[Path], object]) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("a: 1\n")
    with pytest.raises(FedframeError, match=r"broken/config\.yaml .*not the settings of a run"):
        look(broken)
    assert files(broken) == {broken / "config.yaml"}


def test_settings_that_a_run_did_not_have_yet_do_not_stop_its_page(runs: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.yaml", "metrics.jsonl", "summary.json"):
        text = (runs / "0" / name).read_text()
        (old / name).write_text("".join(line for line in text.splitlines(True) if not line.startswith("model_seed")))
    assert write_page([old], quick=True).exists()


def test_no_folders_are_made_for_a_slip_of_the_pen(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(FedframeError, match=r"there is no folder .*nowhere; make it, or use --out x\.html"):
        write_page([runs / "0"], tmp_path / "nowhere" / "x.html", quick=True)
    with pytest.raises(FedframeError, match=r"there is no folder .*nowhere"):
        draw([runs / "0"], "curves", tmp_path / "nowhere" / "x.svg")
    assert not files(tmp_path)


def test_unknown_pictures_of_features_are_refused_before_any_work(runs: Path) -> None:
    with pytest.raises(FedframeError, match="embedding = 'umap'"):
        write_page([runs / "0"], quick=True, embedding="umap")
    assert not (runs / "0" / "report.html").exists()


def test_watching_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = CliRunner().invoke(app, ["watch", str(tmp_path / "file")])
    assert "is a file; give a run folder" in str(found.exception)
