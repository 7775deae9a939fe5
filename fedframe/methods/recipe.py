"""A recipe: parts under a name, with the run settings that suit them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedframe.core import Part


@dataclass(frozen=True)
class Recipe:
    """A named method: its parts, the run settings that suit it, and where it comes from."""

    name: str
    summary: str
    paper: str = ""
    parts: tuple[Part, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    part_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of parts that others may replace
