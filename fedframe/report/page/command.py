"""The command that repeats a run: its method and every setting that differs from the method's defaults."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedframe.errors import FedframeError
from fedframe.jobs.gather import gather
from fedframe.methods.recipes import outline_method
from fedframe.runs.federated import train_again
from fedframe.settings import PANELS, REMOTE_DATA, Settings, check, from_python, merge_part_settings
from fedframe.util.allowed_code import check_named

ALWAYS: tuple[str, ...] = ("data", "rounds", "seed")  # named even if they are the defaults, as everybody asks for them
SAME_BITS_WITHOUT = ("workers", "engine", "log")  # settings that do not change what is learned


def command(config: Mapping[str, Any], folder: Path) -> str:
    """The exact command; where a setting cannot be an option, the command that reads the run's config file."""
    if config.get("data") == REMOTE_DATA:
        return train_again(folder)
    again = f"fedframe run --config {shlex.quote((folder / 'config.yaml').as_posix())}"
    objects = from_python(config)
    if objects:
        again = ", ".join(f"{name}=..." for name in objects)
        return f"fedframe.run(config={(folder / 'config.yaml').as_posix()!r}, {again})  # in Python"
    try:
        words = command_arguments(config)
    except (FedframeError, NotAnOptionError):
        return again
    return shlex.join(["fedframe", "run", *words])


class NotAnOptionError(Exception):
    """A setting whose value the command line cannot express."""


def command_arguments(config: Mapping[str, Any]) -> list[str]:
    """Method and options, as a list of arguments."""
    settings = check(dict(config))
    check_named(settings.method)
    brought, always = gather({"method": settings.method}, None), ALWAYS
    if settings.lr_per_class is None and brought.lr_per_class is not None:  # a given rate takes its place
        brought, always = gather({"method": settings.method, "lr": settings.lr}, None), (*ALWAYS, "lr")
    words = [settings.method]
    for name in (name for names in PANELS.values() for name in names if name not in SAME_BITS_WITHOUT):
        value = getattr(settings, name)
        if name in always or value != getattr(brought, name):
            words += option(name, value)
    for part, values in with_defaults(settings, brought).items():
        for key, value in values.items():
            if (part, key, value) not in named(brought):
                words += ["--set", f"{part}.{key}={yaml_text(value)}"]
    return words


def named(settings: Settings) -> list[tuple[str, str, object]]:
    """The settings of parts, one by one."""
    return [(part, key, value) for part, values in settings.set.items() for key, value in values.items()]


def with_defaults(settings: Settings, brought: Settings) -> dict[str, dict[str, Any]]:
    """The settings of parts, with the defaults of those that a new run would name and an older one does not."""
    own = {part.name: part for part in outline_method(settings.method).parts} if brought.set else {}
    defaults = {part: {key: getattr(own[part], key) for key in values} for part, values in brought.set.items()}
    return merge_part_settings(defaults, settings.set)


def option(name: str, value: object) -> list[str]:
    """The arguments that set a setting."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if value is None:
        raise NotAnOptionError(name)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # two new clients, not 2.0
    return [f"--{flag}", str(value)]


def yaml_text(value: object) -> str:
    """A value that YAML reads back as the same value."""
    text = str(value)
    return text if isinstance(value, str) and yaml.safe_load(text) == value else json.dumps(value)
