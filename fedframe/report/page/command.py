"""The command that runs a run again: its method and every setting that is not what the method brings along."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedframe.errors import FedframeError
from fedframe.runs.federated import train_again
from fedframe.settings import REMOTE_DATA, from_python

ALWAYS = ("data", "rounds", "seed")  # said also where they are the default: everybody asks for them
SAME_BITS_WITHOUT = ("workers", "engine", "log")  # settings that do not change what is learned


def command(config: Mapping[str, Any], folder: Path) -> str:
    """The exact command; where the command line cannot say a setting, the one that reads the run's own file."""
    if config.get("data") == REMOTE_DATA:
        return train_again(folder)
    again = f"fedframe run --config {shlex.quote((folder / 'config.yaml').as_posix())}"
    objects = from_python(config)
    if objects:
        again = ", ".join(f"{name}=..." for name in objects)
        return f"fedframe.run(config={(folder / 'config.yaml').as_posix()!r}, {again})  # in Python"
    try:
        words = command_words(config)
    except (FedframeError, UnsaidError):
        return again
    return shlex.join(["fedframe", "run", *words])


class UnsaidError(Exception):
    """A setting that has no value on the command line."""


def command_words(config: Mapping[str, Any]) -> list[str]:
    """Method and options, as a shell would split them."""
    from fedframe.jobs.gather import gather  # brings torch along
    from fedframe.settings import PANELS, check

    settings = check(dict(config))
    brought = gather({"method": settings.method}, None)
    words = [settings.method]
    for name in (name for names in PANELS.values() for name in names if name not in SAME_BITS_WITHOUT):
        value = getattr(settings, name)
        if name in ALWAYS or value != getattr(brought, name):
            words += option(name, value)
    for part, values in settings.set.items():
        for key, value in values.items():
            words += ["--set", f"{part}.{key}={yaml_word(value)}"]
    return words


def option(name: str, value: object) -> list[str]:
    """A setting as an option."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if value is None:
        raise UnsaidError(name)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # two new clients, not 2.0
    return [f"--{flag}", str(value)]


def yaml_word(value: object) -> str:
    """A value that YAML reads back as the same value."""
    text = str(value)
    return text if isinstance(value, str) and yaml.safe_load(text) == value else json.dumps(value)
