"""Named methods: parts put together, with the papers' settings; and how a method's name is read.

`fedavg` is a recipe, `fine_tune` is a part, and `+` joins any of them. Settings of a part are given by the part's
name: `--set fine_tune.epochs=3`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedframe.core.method import Method, combine
from fedframe.core.part import Part
from fedframe.errors import SettingError, nearest
from fedframe.parts import DEFAULTS, PARTS


@dataclass(frozen=True)
class Recipe:
    """A named method: its parts, the run settings that suit it, and where it comes from."""

    name: str
    summary: str
    paper: str = ""
    parts: tuple[Part, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "fedavg",
            "Clients train the whole model; the server takes the mean of their updates.",
            "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017",
        ),
    )
}


def find_recipes(name: str) -> list[Recipe]:
    """The recipes and parts that a method's name joins with `+`."""
    found: list[Recipe] = []
    for piece in name.split("+"):
        key = piece.strip()
        if key in RECIPES:
            found.append(RECIPES[key])
        elif key in PARTS:
            found.append(Recipe(key, f"the part {key}", PARTS[key].paper, (make_part(key, {}),)))
        else:
            raise SettingError(f"There is no method {key!r}; {nearest(key, [*RECIPES, *PARTS])}")
    return found


def recipe_defaults(name: str) -> dict[str, Any]:
    """The run settings that a method brings along; where two recipes differ, the later one counts."""
    merged: dict[str, Any] = {}
    for recipe in find_recipes(name):
        merged |= recipe.defaults
    return merged


def make_method(name: str, settings: Mapping[str, Mapping[str, Any]]) -> Method:
    """The method that a name stands for, with its parts' settings changed as asked."""
    parts = [part for recipe in find_recipes(name) for part in recipe.parts]
    chosen = combine(name, parts, [default() for default in DEFAULTS])
    names = [part.name for part in chosen.parts]
    for key in settings:
        if key not in names:
            raise SettingError(f"{name!r} has no part {key!r} to set; {nearest(key, names)}")
    changed = [
        make_part(part.name, {**vars(part), **settings[part.name]}) if part.name in settings else part
        for part in chosen.parts
    ]
    return Method(name, tuple(changed))


def make_part(name: str, values: Mapping[str, Any]) -> Part:
    """A part with its settings checked."""
    kind = PARTS[name]
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            hint = nearest(key, fields) if fields else "it has none."
            raise SettingError(f"The part {name!r} has no setting {key!r}; {hint}")
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        problem = error.errors()[0]
        where = problem["loc"][0] if problem["loc"] else name
        default = fields.get(str(where), "left out")
        raise SettingError(
            f"{name}.{where} = {problem['input']!r}: {problem['msg'].removeprefix('Input ')}; the default is {default}."
        ) from error
