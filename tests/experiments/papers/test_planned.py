"""`fedframe paper --dry-run` fits on a screen: what would be run by data set, not cell by cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedframe.experiments.papers.cells import Choice
from fedframe.experiments.papers.planned import print_plan
from fedframe.experiments.papers.scale import Scale


def test_a_dry_run_of_a_large_table_fits_on_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choice = Choice(Scale(0.05), 1, [], [], {}, {}, tmp_path, False)
    print_plan("fedrane-1", choice)
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 40
    assert "12 columns: EMNIST Dir(0.1)" in text
    assert "\nrounds: 22\n" in text
    assert "\nfashion-mnist         45         0  " in text
    assert "180 runs. Every cell with its settings: add --cells." in text
    assert not list(tmp_path.iterdir())
