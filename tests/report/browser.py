"""A real browser for tests: Chromium, driven by Playwright; tests are skipped where either is absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 300_000  # milliseconds: on a busy machine everything takes longer, and nothing here is about speed
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


class Seen:
    """A page in the browser, and whatever its console complained about."""

    def __init__(self, browser: Browser, address: str, width: int = 1280, scheme: str = "light", **more: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
            offline=more.pop("offline", address.startswith("file:")),
            **more,
        )
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked_for: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked_for.append(request.url))
        self.page.set_default_timeout(PATIENCE)
        self.page.goto(address)
        self.wait()

    def wait(self) -> None:
        """Until every section is drawn."""
        self.page.wait_for_selector("html[data-drawn=all]", state="attached")

    def close(self) -> None:
        """Close the tab."""
        self.context.close()


def address(path: Path) -> str:
    """The address of a file."""
    return path.resolve().as_uri()
