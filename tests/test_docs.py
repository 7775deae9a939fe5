"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedframe.settings import PANELS, Settings

ROOT = Path(__file__).parent.parent


def row(name: str) -> str:
    """A setting as a row of docs/configuration.md."""
    field = Settings.model_fields[name]
    default = field.get_default(call_default_factory=True)
    shown = "" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    return f"| `{name}` | {shown} | {field.description} |"


@pytest.mark.parametrize("name", [name for names in PANELS.values() for name in names])
def test_every_setting_is_documented_with_its_default(name: str) -> None:
    assert row(name) in (ROOT / "docs" / "configuration.md").read_text()


def test_every_setting_has_a_panel() -> None:
    listed = [name for names in PANELS.values() for name in names]
    assert sorted([*listed, "method", "set"]) == sorted(Settings.model_fields)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)  # code has brackets of its own
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
            assert (page.parent / target).stat().st_size > 500, f"{target} is all but empty"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme, script = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "<!-- test command -->\n```sh\npython3 -m venv .venv" in readme
    assert "test command" in script
