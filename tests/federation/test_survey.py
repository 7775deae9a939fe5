"""A survey of three hospitals whose data differ makes an agreement, and tells nothing of fewer rows than agreed."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from pathlib import Path

from fedframe.federation.start import start
from tests.federation.surveyed import Surveyed, three_tables


def test_three_tables_that_differ_become_one_agreement_and_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch)
    for each in clinic.said.values():
        print("\n".join(each))
    agreement = clinic.survey()
    print("\n".join(clinic.outcome))
    print(agreement.text())
    start(clinic.made, progress=False)
    print("\n".join(clinic.said["south"]))
    assert 0
