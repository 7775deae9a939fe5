"""The reference of the Python interface shows attributes, too: the comment beside one is its description.

In the source, `lr: float  # of the current round` says what a field is. The generator of the reference reads docstrings
only, and leaves out what has none. Here a comment at the end of the line, or alone above it, becomes the docstring.
"""

from __future__ import annotations

import io
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

from griffe import Attribute, Docstring, Extension, Parser


class CommentsAsDescriptions(Extension):
    """Describe attributes by their comments."""

    def on_attribute_instance(self, *, attr: Attribute, **more: Any) -> None:
        """Take the comment of an attribute that has no docstring."""
        if attr.docstring is None and attr.lineno is not None and isinstance(attr.filepath, Path):
            text = comment_of(attr.filepath, attr.lineno, attr.endlineno or attr.lineno)
            if text:
                sentence = text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")
                attr.docstring = Docstring(sentence, parent=attr, parser=Parser.google)


def comment_of(path: Path, first: int, last: int) -> str:
    """The comment behind a statement, else the block of comments right above it."""
    found = comments(path)
    for line in range(first, last + 1):
        if line in found and not found[line][0]:
            return found[line][1]
    above: list[str] = []
    line = first - 1
    while line in found and found[line][0]:
        above.insert(0, found[line][1])
        line -= 1
    return " ".join(above) if not any(text.startswith("--") for text in above) else ""


@cache
def comments(path: Path) -> dict[int, tuple[bool, str]]:
    """The comments of a file by line: whether it stands alone there, and its text."""
    found: dict[int, tuple[bool, str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            found[token.start[0]] = (alone, token.string.lstrip("# ").strip())
    return found
