"""A sheet to draw SVG pictures on: escaped text, short numbers, and colours for light and dark pages."""

from __future__ import annotations

import math
import re
from xml.sax.saxutils import escape

CARD, INK, DIM, GRID = (
    ("#ffffff", "#0d1117"),
    ("#1f2328", "#e6edf3"),
    ("#59636e", "#9198a1"),
    ("#e4e7eb", "#262c36"),
)
HUE = ("#1f5fd0", "#6cb0ff")
# Told apart also by colour-blind readers (tests/report/test_colours.py), and with a contrast of 3 or more.
SERIES = [
    ("#12479e", "#4a94ff"),
    ("#e0660a", "#d9661f"),
    ("#0a9a72", "#45e09a"),
    ("#c9499c", "#dd5aa9"),
    ("#5a4108", "#f6dc55"),
    ("#2b93c4", "#7fdcf8"),
    ("#7a5fd0", "#b49cf2"),
    ("#3c434c", "#dfe3e8"),
]

# Each rule has a light and a dark value. Plain rules and a media query rather than CSS variables, as
# converters to PDF or PNG know the former; names start with ff-, as the style of a picture inlined in a page
# reaches all of it.
RULES: dict[str, tuple[str, tuple[str, str]]] = {
    ".ff-card": ("fill", CARD),
    ".ff-edge": ("stroke", ("#d1d9e0", "#30363d")),
    ".ff-ink": ("fill", INK),
    ".ff-dim": ("fill", DIM),
    ".ff-grid": ("stroke", GRID),
    ".ff-axis": ("stroke", ("#8c959f", "#656c76")),
    ".ff-bar": ("fill", ("#aeb6bf", "#5d6672")),
    ".ff-hue": ("fill", HUE),
    ".ff-run": ("stroke", HUE),
    ".ff-on": ("fill", ("#ffffff", "#06121f")),
    **{f".ff-s{i}": ("stroke", pair) for i, pair in enumerate(SERIES)},
    **{f".ff-t{i}": ("fill", pair) for i, pair in enumerate(SERIES)},
}
FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NARROW, _WIDE = frozenset("ijlItfr.,:;'|!()[] -"), frozenset("mwMW%@")


class Canvas:
    """Collects the elements of one picture."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def add(self, element: str) -> None:
        """Add a finished element."""
        self.parts.append(element)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str = "ink",
        size: float = 12,
        anchor: str = "start",
        bold: bool = False,
        turn: float = 0,
    ) -> None:
        """Write text with its baseline at y, turned about its anchor by so many degrees."""
        extra = f' text-anchor="{anchor}"' if anchor != "start" else ""
        extra += ' font-weight="600"' if bold else ""
        extra += f' transform="rotate({num(turn)} {num(x)} {num(y)})"' if turn else ""
        place = f'x="{num(x)}" y="{num(y)}" font-size="{num(size)}"'
        self.add(f'<text {place} class="ff-{kind}"{extra}>{clean(text)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, extra: str = "") -> None:
        """Draw a filled box."""
        box = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"'
        self.add(f'<rect {box} class="ff-{kind}"{extra}/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a thin line."""
        self.add(f'<path d="M{num(x1)} {num(y1)}L{num(x2)} {num(y2)}" class="ff-{kind}" fill="none"/>')

    def render(self, width: float, height: float, title: str, description: str) -> str:
        """Give the whole picture on its card, with the words a screen reader needs."""
        used = "".join(self.parts)
        rules = {k: v for k, v in RULES.items() if k in (".ff-card", ".ff-edge") or f'{k[1:]}"' in used}
        light = "".join(f"{k}{{{name}:{pair[0]}}}" for k, (name, pair) in rules.items())
        dark = "".join(f"{k}{{{name}:{pair[1]}}}" for k, (name, pair) in rules.items())
        w, h = math.ceil(width), math.ceil(height)
        size = f'viewBox="0 0 {w} {h}" width="{w}" height="{h}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}">'
            f"<title>{clean(title)}</title><desc>{clean(description)}</desc>"
            f"<style>{light}@media(prefers-color-scheme:dark){{{dark}}}</style>"
            f'<rect x=".5" y=".5" width="{w - 1}" height="{h - 1}" rx="8" class="ff-card ff-edge"/>'
            f"{used}</svg>\n"
        )


def clean(text: str) -> str:
    """Make any text safe inside an element or attribute; characters that XML forbids become a box."""
    return escape(_ILLEGAL.sub("\u25a1", text), {'"': "&quot;"})


def num(value: float) -> str:
    """Write a coordinate in as few characters as a hundredth of a pixel needs."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def width_of(text: str, size: float = 12) -> float:
    """Estimate how wide text will be, on the safe side: a picture cannot ask for the reader's font."""
    return size * sum(_advance(c) for c in text)


def shorten(text: str, room: float, size: float = 12) -> str:
    """Cut text to a width, with an ellipsis for what is lost."""
    if width_of(text, size) <= room:
        return text
    while text and width_of(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def wrap(text: str, room: float, size: float = 12) -> list[str]:
    """Break text into lines of at most this width."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(shorten(word, room, size))
    return lines


def _advance(character: str) -> float:
    if character in _NARROW:
        return 0.36
    if character in _WIDE or ord(character) > 0x2E80:  # wide letters; Chinese, Japanese, Korean
        return 1.0
    return 0.7 if character.isupper() else 0.6
