"""A part from the values of its settings: checked, and with a clear sentence where one is wrong or missing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedframe.core import Part
from fedframe.errors import SettingError, nearest


class Required(Enum):
    """Stands where a setting has no default and no value was given yet."""

    REQUIRED = "REQUIRED"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


REQUIRED = Required.REQUIRED
EXAMPLES: Mapping[type, str] = {bool: "true", int: "1", float: "0.1"}


def make_part(kind: type[Part], values: Mapping[str, Any], brought: Mapping[str, Any] | None = None) -> Part:
    """A part with its settings checked; `brought` are a method's defaults where they are not the part's."""
    name = kind.name
    fields = {field.name: field.default for field in dataclasses.fields(kind)} | dict(brought or {})
    for key in values:
        if key not in fields:
            hint = nearest(key, fields) if fields else "it has none."
            raise SettingError(f"The part {name!r} has no setting {key!r}; {hint}")
    for key in required_settings(kind):
        if values.get(key, REQUIRED) is REQUIRED:
            raise SettingError(
                f"The part {name!r} needs {name}.{key}, which has no default; add --set {name}.{key}="
                f"{example(kind, key)}, or another."
            )
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingError(f"{name}.{key} = {value}: it must be a finite number; {default_hint(kind, key, fields)}")
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        problem = error.errors()[0]
        if not problem["loc"]:  # what the part itself says of its settings together, in `__post_init__`
            said = str(problem.get("ctx", {}).get("error") or problem["msg"]).strip().rstrip(".")
            given = ", ".join(f"{name}.{key} = {value!r}" for key, value in values.items())
            raise SettingError(
                f"The part {name!r} refuses its settings: {said}{f' ({given})' if given else ''}."
            ) from error
        where = str(problem["loc"][0])
        said = problem["msg"].removeprefix("Input ")
        raise SettingError(
            f"{name}.{where} = {problem['input']!r}: {said}; {default_hint(kind, where, fields)}"
        ) from error


def default_part(kind: type[Part]) -> Part:
    """A part with its defaults. Settings without one hold REQUIRED until `make_part` gets their values."""
    missing = required_settings(kind)
    return kind(**dict.fromkeys(missing, REQUIRED)) if missing else make_part(kind, {})


def is_complete(part: Part) -> bool:
    """Whether all settings have values."""
    return not any(value is REQUIRED for value in vars(part).values())


def required_settings(kind: type[Part]) -> list[str]:
    """The settings of a part that have no default."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(kind) if f.default is missing and f.default_factory is missing]


def default_hint(kind: type[Part], key: str, defaults: Mapping[str, Any]) -> str:
    """The end of a sentence about a wrong value."""
    if key in required_settings(kind):
        return f"try {example(kind, key)}."
    return f"the default is {defaults.get(key, 'left out')}."


def example(kind: type[Part], key: str) -> str:
    """A value of a setting's type, as it would be typed."""
    hint = get_type_hints(kind).get(key)
    if get_origin(hint) is Literal:
        return str(get_args(hint)[0])
    return EXAMPLES.get(hint, "VALUE") if isinstance(hint, type) else "VALUE"
