"""Smoothed lines: every point is the mean of the last few evaluations, so that swings do not hide where a line goes."""

from __future__ import annotations

from collections.abc import Sequence

from fedframe.errors import SettingError
from fedframe.report.page.section import Data

VALUE, LOW, HIGH = 3, 4, 5  # places in a point of a line


def trailing_means(values: Sequence[float | None], count: int) -> list[float | None]:
    """The mean of each value and those before it, `count` in all or as many as there are; None stays None."""
    found: list[float | None] = []
    for i, value in enumerate(values):
        known = [each for each in values[max(0, i + 1 - count) : i + 1] if each is not None]
        found.append(sum(known) / len(known) if value is not None else None)
    return found


def smooth(data: Data, count: int) -> Data:
    """The data of a figure with all lines of its panels smoothed, and a caption that says so.

    Intervals are left out: that of a mean over rounds, which hang together, is not the mean of the rounds' intervals.
    """
    if count < 1:
        raise SettingError(f"smooth = {count}: a mean is over one evaluation or more; use smooth = 5.")
    if count == 1:
        return data
    panels = [{**panel, "series": [smoothed_line(line, count) for line in panel["series"]]} for panel in data["panels"]]
    caption = f"Lines are means of the last {count} evaluations, without intervals."
    return {**data, "panels": panels, "caption": caption}


def smoothed_line(line: Data, count: int) -> Data:
    """One line, smoothed."""
    means = trailing_means([point[VALUE] for point in line["points"]], count)
    points = [[*point[:VALUE], mean, None, None] for point, mean in zip(line["points"], means, strict=True)]
    return {**line, "points": points}
