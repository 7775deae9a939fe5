"""Analysis of finished runs: `examine(folder)` measures what a run's models are like."""

from __future__ import annotations

from fedframe.analysis.examination import examine

__all__ = ["examine"]
