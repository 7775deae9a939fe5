"""The methods of a comparison, each with settings and candidates of its own where it has any.

fedprox                                   a method as it is
fedprox?lr=0.1&prox.mu=0.01               with settings of its own
fedetf?lr=[0.05,0.1]&label=FedETF tuned   with candidates of its own, and another name in the tables
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import yaml

from fedframe.errors import SettingError
from fedframe.experiments.compare.address import Address, Values, find_address, merge_layers, parts_of
from fedframe.methods.recipes import MethodLike, method_label, method_text
from fedframe.util.allowed_code import allow_typed

MOST_SWEPT = 2  # settings of one method: the number of runs is the product of their values
EXAMPLE = "fedprox?lr=0.1&prox.mu=0.01"
MethodSpec = MethodLike | Mapping[str, Any]  # a method, or a mapping of one and of settings of its own


@dataclass(frozen=True)
class Candidate:
    """Values of the swept settings."""

    values: tuple[tuple[Address, Any], ...] = ()

    def __str__(self) -> str:
        return " ".join(f"{address}={value}" for address, value in self.values)

    @property
    def settings(self) -> Values:
        """As settings of a run."""
        return merge_layers(*(address.value(value) for address, value in self.values))


@dataclass(frozen=True)
class MethodRow:
    """A method of the comparison."""

    method: str
    label: str
    settings: Values = field(default_factory=dict)
    sweep: Mapping[Address, tuple[Any, ...]] = field(default_factory=dict)
    old_label: str = field(default="", repr=False)  # with an object's first values; empty: the user's own label

    def relabelled(self, parts: Mapping[str, Mapping[str, Any]]) -> MethodRow:
        """The same, called after what it runs with: objects show values after `parts`, the settings of all methods.

        What the method has of its own stands behind its name, and what is swept in the tables.
        """
        if not self.old_label:  # the user's own
            return self
        name = method_label(self.method)
        own = {(part, key) for part, values in (self.settings.get("set") or {}).items() for key in values}
        own |= {(address.part, address.name) for address in self.sweep}
        return replace(self, label=f"{method_label(self.method, parts, own)}{self.old_label.removeprefix(name)}")

    @property
    def candidates(self) -> list[Candidate]:
        """Every combination of the swept values, the first setting slowest."""
        addresses = [*self.sweep]
        return [Candidate(tuple(zip(addresses, values, strict=True))) for values in product(*self.sweep.values())]


def read_rows(methods: Sequence[MethodSpec], sweeps: Mapping[str, Sequence[Any]], longest: int = 60) -> list[MethodRow]:
    """The rows that specs of methods stand for; `sweeps` are those of all methods that have the settings."""
    asked = [read_method(each) for each in methods]
    if not asked:
        raise SettingError("There is nothing to compare; name at least one method: fedframe compare fedavg fedprox.")
    names = [method_of(each) for each in asked]
    common = {find_address(name, names): checked_values(name, values) for name, values in sweeps.items()}
    rows = [read_row(each, common) for each in asked]
    check_labels(rows, longest)
    return rows


def check_labels(rows: Sequence[MethodRow], longest: int = 60) -> None:
    """Refuse names that tables cannot show or tell apart."""
    labels = [row.label for row in rows]
    for label in labels:
        if labels.count(label) > 1:
            raise SettingError(f"Two methods are called {label!r}; name one of them: '{label}?label=another name'.")
        if len(label) > longest:
            raise SettingError(f"The name {label!r} is too long for a table; add &label=short name to the method.")


def read_method(spec: MethodSpec) -> Values:
    """A method with its settings as a mapping, whose `method` is a text."""
    if isinstance(spec, str):
        return read_text(spec)
    if not isinstance(spec, Mapping):
        return {"method": method_text(spec)}
    return {**spec, "method": method_text(spec.get("method", ""))}


def read_text(text: str) -> Values:
    """`fedprox?lr=0.1&prox.mu=0.01` as a mapping."""
    method, _, query = text.partition("?")
    values: Values = {"method": method.strip()}
    for pair in query.split("&") if query else ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise SettingError(f"{text!r} cannot be read at {pair!r}; write it as '{EXAMPLE}'.")
        values[name.strip()] = value if name.strip() == "label" else read_value(value, text)
    return values


def read_value(text: str, where: str) -> Any:
    """A value as YAML reads it."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise SettingError(f"{where!r} cannot be read: {text!r} is no value; try 0.1 or [0.05, 0.1].") from None


def read_sweep(text: str) -> tuple[str, list[Any]]:
    """`lr=0.01,0.1` as a name and its values; values that hold commas: `lr_schedule=[cosine, "step:0.1@0.5,0.75"]`."""
    name, equals, rest = text.partition("=")
    if not (equals and name.strip() and rest.strip()):
        raise SettingError(f"--sweep {text!r} cannot be read; write it as --sweep lr=0.01,0.1")
    if rest.strip().startswith("["):
        values = read_value(rest, text)
        return name.strip(), values if isinstance(values, list) else [values]
    return name.strip(), [read_value(value, text) for value in rest.split(",")]


def method_of(values: Mapping[str, Any]) -> str:
    """The method's name, checked."""
    method = str(values.get("method", ""))
    allow_typed(method)
    parts_of(method)  # refuse one that does not exist by its name
    return method


def read_row(given: Values, common: Mapping[Address, tuple[Any, ...]]) -> MethodRow:
    """A row: lists are candidates, other values are fixed; a fixed value takes a setting out of the common sweep."""
    given = dict(given)
    method, label = str(given.pop("method")), given.pop("label", None)
    own = parts_of(method)
    settings: Values = {}
    sweep = {address: values for address, values in common.items() if address.suits(own)}
    for name, value in flatten(given).items():
        address = find_address(name, [method])
        if isinstance(value, list):
            sweep[address] = checked_values(name, value)
        else:
            settings = merge_layers(settings, address.value(value))
            sweep.pop(address, None)
    if len(sweep) > MOST_SWEPT:
        names = ", ".join(map(str, sweep))
        raise SettingError(f"{method}: a sweep is over one or two settings, not {names}; fix some of them.")
    fixed = ", ".join(f"{name}={value}" for name, value in flatten(given).items() if not isinstance(value, list))
    if label:
        return MethodRow(method, str(label), settings, sweep)
    named = f"{method_label(method)} {fixed}".strip()
    return MethodRow(method, named, settings, sweep, named).relabelled({})


def flatten(given: Mapping[str, Any]) -> Values:
    """Settings of parts as `part.name`, whether they are written so or below `set` as in a run's YAML file."""
    values = {name: value for name, value in given.items() if name != "set"}
    parts = given.get("set") or {}
    if not isinstance(parts, Mapping):
        raise SettingError(f"set = {parts!r} cannot be read; write set: {{fine_tune: {{epochs: 3}}}}.")
    for part, each in parts.items():
        values |= (
            {f"{part}.{name}": value for name, value in each.items()} if isinstance(each, Mapping) else {part: each}
        )
    return values


def checked_values(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """The values of a sweep: at least one, none twice."""
    if any(isinstance(value, list | dict) for value in values):
        raise SettingError(f"The sweep over {name} holds a list inside a list; write --sweep {name}=0.01,0.1")
    unique = [*dict.fromkeys(values)]
    if not unique:
        raise SettingError(f"The sweep over {name} has no values; write --sweep {name}=0.01,0.1")
    return tuple(unique)
