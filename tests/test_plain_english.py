"""Pages and messages are plain English: no phrase that readers stumbled over, no endless sentence.

Spelling is codespell's (`.ci/run`). What this checks of readability is coarse on purpose: a page's sentences in the
mean, its longest one, and phrases that have a plain word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from tests.test_docs import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "fedframe").rglob("*.py"))
# What was written once, and what to write instead.
PLAIN = {
    "is not here": "is not available",
    "are not here": "are not available",
    "can be had": "is available, is possible",
    "could not be had": "was not available",
    "otherwise than": "differently from",
    "had a say": "was used",
    "for want of": "because ... is missing",
    "without a word": "without a message",
    "would do.": "use ...",
    "is told of": "is reported about",
    "it is mended": "it is fixed",
    "at the brink": "close to instability",
    "be taken for": "look like",
    "the like of": "the same for",
    "no match for": "not comparable with",
    "holds 0": "contains 0",
    "eft alone, the": "by default the",
    "with somebody who is no": "with a stranger",
    "what came of it": "the result",
    " anew": "again",
    "in the place of": "in place of",
    "omebody": "someone",
    " one's own": "your own",
    "had better": "should",
    "goes astray": "what goes wrong",
    "next to no": "hardly any, almost nothing",
}
MEAN_WORDS, MOST_WORDS = 20, 55  # of the sentences of a page
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TABLE = re.compile(r"^ *\|.*$", re.MULTILINE)
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$\n]*\$", re.DOTALL)
LINK = re.compile(r"\]\([^)]*\)")
END = re.compile(r"(?<=[.?!:])[\s*]+(?=[A-Z`\[*(])|\n\n+|\n(?= *[-|#>]|\d+\. )| · ")


def sentences(page: Path) -> list[str]:
    """The sentences of a page's prose: no code, no tables, no formulas, no headings."""
    text = COMMENT.sub("", TABLE.sub("", FENCE.sub("\n\n", page.read_text())))
    text = LINK.sub("]", FORMULA.sub("x", text))
    lines = [line.strip() for line in END.split(text)]
    return [line for line in lines if line and line[0] not in "|#>!<" and len(line.split()) > 3]


def messages(module: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that people may see, without docstrings."""
    tree = ast.parse(module.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_can_be_read(page: Path) -> None:
    found = sentences(page)
    text = " ".join(page.read_text().split())
    assert not {f"{phrase}: write {plain}" for phrase, plain in PLAIN.items() if phrase in text}
    if len(found) > 10:
        sizes = [len(each.split()) for each in found]
        assert fmean(sizes) <= MEAN_WORDS
        assert max(sizes) <= MOST_WORDS, max(found, key=lambda each: len(each.split()))


def test_messages_have_none_of_the_phrases() -> None:
    found = [
        f"{module.relative_to(ROOT)}:{line}: {phrase}: write {plain}"
        for module in MODULES
        for line, text in messages(module)
        for phrase, plain in PLAIN.items()
        if phrase in text
    ]
    assert not found, "\n".join(found)
