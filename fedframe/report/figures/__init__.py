"""Figures for papers: the page's data as static pictures."""

from __future__ import annotations

from fedframe.report.figures.drawing import FIGURES, draw

__all__ = ["FIGURES", "draw"]
