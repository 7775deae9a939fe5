"""Engines that need an extra: a missing one is one sentence, and no folder is left behind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import fedframe
from fedframe.errors import SettingError


@pytest.mark.parametrize(
    ("engine", "missing", "extra"),
    [("flower", "flwr", "flower"), ("flower-sim", "ray", "flower-sim"), ("flower-sim", "flwr", "flower-sim")],
)
def test_a_missing_extra_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, missing: str, extra: str
) -> None:
    find = importlib.util.find_spec

    def without(name: str, *given: Any) -> Any:
        return None if name == missing else find(name, *given)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(SettingError, match=rf"needs .*{missing}.*install it with: pip install 'fedframe\[{extra}\]'"):
        fedframe.run("fedavg", engine=engine, out=tmp_path / "run", progress=False)
    assert list(tmp_path.iterdir()) == []
