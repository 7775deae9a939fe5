"""One self-contained HTML file: template, style, scripts and data, none of which can break out of its element."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from fedframe.report.page.section import finite
from fedframe.util.version import __version__

STYLES = ("page.css", "parts.css")
VENDOR = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
FRAME = ("base.js", "theme.js", "tooltip.js", "controls.js", "table.js", "heatmap.js", "plot.js", "shell.js", "live.js")
LAST = ("main.js",)


def render(data: dict[str, Any], text_only: str = "") -> str:
    """The page of some data; `text_only` is for browsers that run no scripts."""
    scripts = [*map(asset, VENDOR), program()]
    pieces = {
        "policy": policy(scripts, bool(data.get("live"))),
        "generator": html.escape(f"Fedframe {__version__}"),
        "title": html.escape(str(data["title"])),
        "subtitle": html.escape(str(data["subtitle"])),
        "words": html.escape(text_only),
        "style": "\n".join(map(asset, STYLES)),
        "data": script_json(data),
        "scripts": "\n".join(f"<script>{text}</script>" for text in scripts),
    }
    # In one pass, so that inserted text is never searched for placeholders.
    return re.sub(r"\[\[(\w+)\]\]", lambda found: pieces[found[1]], asset("page.html"))


def script_json(data: Any) -> str:
    """JSON that is safe inside a script element: no character in it can end the element or begin a comment."""
    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # A lone surrogate has no UTF-8 encoding, but can be written as an escape.
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def policy(scripts: list[str], live: bool) -> str:
    """The content security policy: only these scripts run, and a live page may ask its own server for data."""
    allowed = " ".join(f"'sha256-{digest(text)}'" for text in scripts)
    connect = "'self'" if live else "'none'"
    rules = {"default-src": "'none'", "script-src": allowed, "style-src": "'unsafe-inline'", "img-src": "data: blob:"}
    rules |= {"connect-src": connect, "base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def digest(text: str) -> str:
    """The hash of a script as browsers compute it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def program() -> str:
    """The page's own scripts as one, in a scope of their own."""
    figures = sorted(path.name for path in (files(__package__) / "assets" / "figures").iterdir())
    names = (*FRAME, *(f"figures/{name}" for name in figures if name.endswith(".js")), *LAST)
    return '"use strict";\n(() => {\n' + "\n".join(map(asset, names)) + "\n})();\n"


@cache
def asset(name: str) -> str:
    """The text of a file of the package."""
    return (files(__package__) / "assets" / name).read_text("utf-8")
