"""Settings from all places that may give them: the call, a file, the method's recipe, the defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedframe.core.part import Part
from fedframe.errors import SettingError, nearest
from fedframe.methods.recipes import new_run_settings, outline_method, recipe_defaults
from fedframe.models.transformers_nets import resolve
from fedframe.settings import Settings, check, merge_part_settings, merge_settings, read_config
from fedframe.util.locate import resolve_paths

RATES_OF_SGD = ("lr", "lr_per_class", "momentum", "nesterov")


def gather(given: Mapping[str, Any], config: str | Path | None) -> Settings:
    """Settings by precedence: given > config file > recipe > default; paths of the user's own files are absolute."""
    file = read_config(Path(config)) if config is not None else {}
    if given.get("lr") is not None and given.get("lr_per_class") is not None:
        raise SettingError(
            f"lr = {given['lr']} and lr_per_class = {given['lr_per_class']} both give the learning rate; leave one out."
        )
    method = str(given.get("method") or file.get("method") or Settings.model_fields["method"].default)
    brought = recipe_defaults(method)
    if {**file, **given}.get("optimizer", "sgd") != "sgd":  # what the recipe says of SGD does not suit another
        brought = {name: value for name, value in brought.items() if name not in RATES_OF_SGD}
    values = merge_settings(brought, file, given)
    asked = (named_settings(each.get("set") or {}, method) for each in (file, given))
    values["set"] = merge_part_settings(new_run_settings(method), *asked)
    return with_absolute_paths(check(values))


def with_absolute_paths(settings: Settings) -> Settings:
    """The settings with every path of the user's own method, data and net made absolute."""
    net, weights = resolve(settings.model)
    if weights is not None and settings.weights is not None:
        raise SettingError(
            "model = '...:pretrained' and weights both say what weights the net starts with; leave one out."
        )
    resolved = {
        "method": "+".join(resolve_paths(piece.strip()) for piece in settings.method.split("+")),
        "data": resolve_paths(settings.data),
        "model": resolve_paths(net),
    }
    if weights is not None or settings.weights is not None:
        resolved["weights"] = str(Path(weights or str(settings.weights)).expanduser().absolute())
    if settings.data_dir is not None:
        resolved["data_dir"] = str(Path(settings.data_dir).expanduser().absolute())
    return settings.model_copy(update=resolved)


def named_settings(given: Mapping[str, Any], *methods: str) -> dict[str, Any]:
    """Settings of parts with every bare name (`mu`) put below the one part of these methods that has it (`prox`)."""
    if not isinstance(given, Mapping):
        raise SettingError(f"set = {given!r} cannot be read; write set: {{fine_tune: {{epochs: 3}}}}.")
    bare = {name: value for name, value in given.items() if not isinstance(value, Mapping)}
    if not bare:
        return dict(given)
    present = {part.name: part for method in methods for part in outline_method(method).parts}
    found: dict[str, Any] = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    for text, value in bare.items():
        part, dot, name = str(text).rpartition(".")
        found = merge_part_settings(found, {part if dot else part_with_setting(name, present, value): {name: value}})
    return found


def part_with_setting(name: str, present: Mapping[str, Part], value: object) -> str:
    """The one part that has a setting of this name, among those that are present."""
    holders = [part for part in present if name in setting_names(present[part])]
    if name in Settings.model_fields:
        run = f"{name!r} is a setting of the run: give it as --{name.replace('_', '-')} {value}"
        raise SettingError(run + "".join(f", or as --set {part}.{name}={value} for that of {part}" for part in holders))
    if len(holders) == 1:
        return holders[0]
    if holders:
        choices = " or ".join(f"{part}.{name}" for part in holders)
        raise SettingError(f"{name!r} is a setting of several parts; write {choices}.")
    if name in present:
        key = next(iter(setting_names(present[name])), "setting")
        raise SettingError(
            f"set = {{{name!r}: {value!r}}} cannot be read; write set: {{{name}: {{{key}: {value!r}}}}}, or "
            f"--set {name}.{key}={value!r}"
        )
    known = [each for part in present.values() for each in setting_names(part)]
    raise SettingError(f"No part here has a setting {name!r}; {nearest(name, known)}")


def setting_names(part: Part) -> Sequence[str]:
    """The settings of a part."""
    return [field.name for field in dataclasses.fields(part)]
