"""The tables of attacks: every test that they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["security.md", "security-organiser.md"])
def test_every_test_that_a_table_names_is_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    code = {path.stem: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    named = set(re.findall(r"(?:(test_\w+)\.py::)?(test_\w+)\b(?!\*?\.py)", text))
    assert len(named) > 10 or page == "security.md"
    for file, name in named:
        places = [code[file]] if file else code.values()
        assert any(f"def {name}(" in each for each in places) or any(stem.startswith(name) for stem in code), name
    for pattern in set(re.findall(r"tests/[\w/*]+\.py", text)):
        assert [*ROOT.glob(pattern)], pattern
