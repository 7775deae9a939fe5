"""A recipe: parts under a name, with the run settings that suit them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedframe.core import Part
from fedframe.errors import SettingError
from fedframe.methods.part_settings import default_part


@dataclass(frozen=True)
class Recipe:
    """A named method: its parts, the run settings that suit it, and where it comes from."""

    name: str  # what follows `fedframe run`
    summary: str  # one sentence, for `fedframe list`
    paper: str = ""  # the reference that `fedframe show` prints
    parts: tuple[Part, ...] = ()  # in the order in which they act
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of run settings
    part_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of parts that others may replace
    # Settings of parts that a new run names: an older one, whose settings do not, keeps the part's own default.
    new_runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    alone: Recipe | None = None  # what it is where nothing is joined to it

    def __post_init__(self) -> None:
        """A part's class stands for the part with its defaults."""
        parts = [
            default_part(each) if isinstance(each, type) and issubclass(each, Part) else each for each in self.parts
        ]
        for each in parts:
            if not isinstance(each, Part):
                raise SettingError(f"Recipe {self.name!r}: parts = {each!r} is no part; give parts=(MyPart(),).")
        object.__setattr__(self, "parts", tuple(parts))
