"""The address of a setting: of the run (`lr`) or of a part (`prox.mu`, or `mu` where only one part has it)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedframe.core.part import Part
from fedframe.errors import SettingError, nearest
from fedframe.jobs.gather import setting_names
from fedframe.methods.recipes import outline_method
from fedframe.settings import PANELS, Settings, merge_part_settings

# What all methods of a comparison share: clients, splits, initial weights, rounds, and how and where it is scored.
SHARED_SETTINGS = {
    "method",
    "set",
    *PANELS["Data"],
    "model",
    "rounds",
    "participation",
    *PANELS["Scores"],
    *PANELS["Machine"],
}
SHARED_SETTINGS -= {"augment"}
METHOD_SETTINGS = [name for name in Settings.model_fields if name not in SHARED_SETTINGS]

Values = dict[str, Any]


@dataclass(frozen=True)
class Address:
    """The setting of a run or of a part."""

    name: str
    part: str = ""  # empty: a setting of the run

    def __str__(self) -> str:
        return f"{self.part}.{self.name}" if self.part else self.name

    def suits(self, parts: Container[str]) -> bool:
        """Whether a method with these parts has the setting."""
        return not self.part or self.part in parts

    def value(self, content: object) -> Values:
        """The value as settings."""
        return {"set": {self.part: {self.name: content}}} if self.part else {self.name: content}


def parts_of(*methods: str) -> dict[str, Part]:
    """The parts of methods, by name."""
    return {part.name: part for method in methods for part in outline_method(method).parts}


def find_address(text: str, methods: Sequence[str]) -> Address:
    """The setting that a name stands for, among those that may differ between these methods."""
    present = parts_of(*methods)
    head, dot, name = text.strip().partition(".")
    if dot:
        return check_part(head, name, present, methods)
    if head in METHOD_SETTINGS:
        return Address(head)
    if head in SHARED_SETTINGS:
        raise SettingError(
            f"{head} is the same for all methods and candidates of a comparison; give it once, as --{dashed(head)}."
        )
    holders = [part for part in present if head in setting_names(present[part])]
    if len(holders) == 1:
        return Address(head, holders[0])
    if holders:
        choices = " or ".join(f"{part}.{head}" for part in holders)
        raise SettingError(f"{head!r} is a setting of several parts; write {choices}.")
    known = [*METHOD_SETTINGS, *(f"{part}.{each}" for part in present for each in setting_names(present[part]))]
    raise SettingError(f"No method here has a setting {head!r}; {nearest(head, known)}")


def check_part(part: str, name: str, present: Mapping[str, Part], methods: Sequence[str]) -> Address:
    """The address of a part's setting, if there is one."""
    if part not in present:
        raise SettingError(f"{part}.{name}: none of {', '.join(methods)} has a part {part!r}; {nearest(part, present)}")
    fields = setting_names(present[part])
    if name not in fields:
        hint = nearest(name, fields) if fields else "it has none."
        raise SettingError(f"The part {part!r} has no setting {name!r}; {hint}")
    return Address(name, part)


def dashed(name: str) -> str:
    """A setting as the command line writes it."""
    return name.replace("_", "-")


def merge_layers(*layers: Mapping[str, Any]) -> Values:
    """Settings in layers, the later winning; settings of parts name by name."""
    values: Values = {}
    for layer in layers:
        values |= layer
    parts = merge_part_settings(*(layer.get("set") or {} for layer in layers))
    return {**values, "set": parts} if parts else {name: value for name, value in values.items() if name != "set"}
