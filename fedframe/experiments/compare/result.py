"""The result of a comparison as users have it: statistics that can be printed, saved and read as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedframe.core.measures import is_share
from fedframe.experiments.compare.files import plain_comparison, save
from fedframe.experiments.compare.statistics import ComparisonStatistics
from fedframe.experiments.compare.tables import make_document
from fedframe.experiments.tables import html_table, markdown
from fedframe.util.text import figure


@dataclass(frozen=True)
class Comparison(ComparisonStatistics):
    """The result of a comparison: `scores` and `differences` by method, and the tables."""

    def table(self) -> str:
        """The tables as Markdown."""
        return markdown(make_document([self]))

    def save(self, folder: str | Path | None = None) -> list[Path]:
        """Write comparison.md, .csv, .tex, .html and .json (and tuning.csv); by default where the runs are."""
        return save([self], Path(folder) if folder is not None else self.plan.out)

    def plain(self, below: Path | None = None) -> dict[str, Any]:
        """Everything as plain values, for JSON; run folders are relative to the folder it is written to."""
        return plain_comparison(self, below or self.plan.out)

    def __repr__(self) -> str:
        scores = {
            label: {score: figure(self.estimate(label, score).mean, is_share(self.metric)) for score in self.accuracies}
            for label in self.labels
        }
        return f"Comparison({str(self.plan.out)!r}, seeds={len(self.plan.seeds)}, scores={scores})"

    def _repr_html_(self) -> str:
        """The tables, as a notebook shows them."""
        return "\n".join(html_table(table, 4) for chapter in make_document([self]).chapters for table in chapter.tables)
