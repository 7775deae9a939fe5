"""Names of classes, as far as a cut matrix shows them."""

from __future__ import annotations

from typing import Any


def shown_classes(examination: dict[str, Any], width: int) -> list[str]:
    """The names of the classes of a matrix; one of more than 100 classes shows the most frequent ones."""
    classes = [str(name) for name in examination.get("classes") or []]
    if len(classes) == width:
        return classes
    shown = examination.get("shown_classes")
    if isinstance(shown, list) and len(shown) == width:
        known = all(isinstance(each, int) and 0 <= each < len(classes) for each in shown)
        return [classes[each] for each in shown] if known else [str(each) for each in shown]
    return [str(number) for number in range(width)]


def cut_note(examination: dict[str, Any], width: int) -> str:
    """A sentence for a matrix that does not show all classes."""
    total = len(examination.get("classes") or [])
    return f"The {width} most frequent of {total} classes are shown." if total > width else ""
