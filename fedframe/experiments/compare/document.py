"""What is printed and saved, before it has a format: tables and sentences, of one comparison or of several cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedframe.experiments.compare.blocks import DASH, Block, blocks, estimate_text, heading, over_seeds
from fedframe.experiments.compare.notes import notes
from fedframe.experiments.compare.result import Comparison

TITLE = "Comparison"


@dataclass(frozen=True)
class Chapter:
    """Tables and sentences under a heading; none if it is the only one."""

    heading: str
    blocks: Sequence[Block]
    notes: Sequence[str]


@dataclass(frozen=True)
class Document:
    """The command and what came of it."""

    command: str
    chapters: Sequence[Chapter]


def document(comparisons: Sequence[Comparison]) -> Document:
    """One comparison as it is; of several cases first all scores side by side, then each case in full."""
    chapters = [Chapter(each.plan.case, [*blocks(each)], notes(each)) for each in comparisons]
    if len(comparisons) > 1:
        cases = ", ".join(each.plan.case for each in comparisons)
        said = f"Each of {cases} is a case of its own: all methods were tuned (if at all) and scored in it anew."
        chapters.insert(0, Chapter("All cases", [*overview(comparisons)], [said]))
    return Document(comparisons[0].command, chapters)


def overview(comparisons: Sequence[Comparison]) -> Iterator[Block]:
    """A table per accuracy: methods down, cases across."""
    columns = ("method", *(each.plan.case for each in comparisons))
    for score in dict.fromkeys(score for each in comparisons for score in each.accuracies):
        title = f"{heading(score)} in percent, {over_seeds(comparisons[0])}"
        rows = [
            (label, *(estimate_text(each, label, score) if score in each.accuracies else DASH for each in comparisons))
            for label in comparisons[0].labels
        ]
        yield Block(title, columns, tuple(rows))
