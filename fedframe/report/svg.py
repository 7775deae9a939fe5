"""Pictures as SVG text without any dependency: who has what, and lines over rounds."""

from __future__ import annotations

from fedframe.report.curves_svg import curves_picture
from fedframe.report.partition_svg import partition_picture

__all__ = ["curves_picture", "partition_picture"]
