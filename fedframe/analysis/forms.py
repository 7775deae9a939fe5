"""What a measurement of a finished run can come to: a number, curves, a matrix, or points on a plane.

Its form says how it is drawn. All of them are plain values, so that they can be kept as JSON; `facts` are the few
numbers that say in a line what the picture shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Facts = Mapping[str, float | None]
Form = Literal["number", "curves", "matrix", "points"]


@dataclass(frozen=True)
class Number:
    """One number; None where it was not measured."""

    value: float | None


@dataclass(frozen=True)
class Curve:
    """A line with a name."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]


@dataclass(frozen=True)
class Curves:
    """Lines with common axes."""

    lines: Sequence[Curve]
    x_label: str
    y_label: str
    facts: Facts = field(default_factory=dict)
    low: float = 0.0
    high: float | None = None  # ends of the vertical axis; None: where the lines end


@dataclass(frozen=True)
class Matrix:
    """Rows and columns of numbers with names; colours reach from `low` to `high`, or over what there is."""

    cells: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    label: str
    x_label: str
    y_label: str
    low: float | None = None
    high: float | None = None
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Points:
    """Points on a plane, each with a colour and a marker that stand for what the two headings say."""

    x: Sequence[float]
    y: Sequence[float]
    colour: Sequence[str]
    marker: Sequence[str]
    colour_heading: str
    marker_heading: str
    projection: str  # tsne or pca
    facts: Facts = field(default_factory=dict)


Measurement = Number | Curves | Matrix | Points
