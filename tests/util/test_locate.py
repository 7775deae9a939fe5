"""Errors in users' own code, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedframe.core.hook_errors import named_errors
from fedframe.errors import RunError, SettingError
from fedframe.util.locate import locate, own_error

INSTALLED = """
from dataclasses import dataclass
from typing import ClassVar

from fedframe import Part

@dataclass(frozen=True)
class Smooth(Part):
    name: ClassVar[str] = "smooth"

    def penalty(self, context):
        return 1 / 0
"""


def test_error_while_a_file_is_loaded_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("foo = 1\nbar\n")
    with pytest.raises(SettingError) as caught:
        locate(f"{file}:MyNet")
    assert str(caught.value).endswith(f"could not be loaded: NameError: name 'bar' is not defined ({file}, line 2).")


def test_error_in_an_installed_part_names_its_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "smooth_kit.py").write_text(INSTALLED)
    monkeypatch.syspath_prepend(folder)
    part = locate("smooth_kit:Smooth", "part")()  # type: ignore[operator]
    with pytest.raises(RunError) as caught, named_errors("Round 1"):
        part.penalty(None)
    line = 1 + INSTALLED.splitlines().index("        return 1 / 0")
    where = f"({folder / 'smooth_kit.py'}, line {line}, in Smooth.penalty)"
    assert str(caught.value) == f"Round 1: ZeroDivisionError: division by zero {where}"


def test_error_of_ones_own_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def fail():\n    raise ValueError\n")
    with pytest.raises(ValueError, match=r"^$") as caught:
        locate(f"{file}:fail")()  # type: ignore[operator]
    found = own_error(caught.value)
    assert found == f"ValueError ({file}, line 2, in fail)."
