"""The HTML of `fedframe compare` in a real browser: light and dark, on a desk and on a phone, without complaint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedframe.experiments.tables import Chapter, Document, Table, page
from tests.report.browser import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

SCORES = Table(
    "Accuracy in percent, mean and 95 % interval over 3 seeds",
    ("method", "generic", "generic, last five", "client", "personal"),
    tuple((name, *["91.27 [88.39, 94.15]"] * 4) for name in ("fedavg", "<b>fedetf</b>", "–")),  # noqa: RUF001
)
TEXT = Document(
    "Comparison", "fedframe compare fedavg " + "a-very-long-name" * 12, [Chapter("", [SCORES], ["A sentence. " * 30])]
)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen_and_follows_the_system(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    (tmp_path / "comparison.html").write_text(page(TEXT), "utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    tab.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.goto((tmp_path / "comparison.html").as_uri())
    wide, room = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    light = sum(tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"))
    names = tab.locator("tbody th").all_inner_texts()
    shifted = tab.evaluate("getComputedStyle(document.querySelector('tbody td')).textAlign")
    tab.close()
    assert wide <= room, "the page scrolls sideways"
    assert (light > 600) == (scheme == "light")
    assert names[1] == "<b>fedetf</b>"
    assert shifted == "right"
    assert complaints == []
