"""What all members of a federation have agreed on: who they are, where they meet, what data look like, and the run.

It is plain YAML, the same at the organiser and in every kit; nothing in it is secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from fedframe.data.spec import DataSchema
from fedframe.data.target import Target
from fedframe.errors import DataError, SettingError
from fedframe.federation.hosts import plain_host
from fedframe.network.node_request import PROTOCOL
from fedframe.settings import Settings, check
from fedframe.util.files import write_text

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
HEADER = "# A Fedframe federation: what all its members have agreed on. Nothing here is secret.\n"

# What reading a damaged file raises: torch and deep YAML give RuntimeErrors, infinite numbers ArithmeticErrors.
DAMAGE = (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError)


@dataclass(frozen=True)
class Agreement:
    """The contents of federation.yaml."""

    name: str
    host: str
    port: int
    members: tuple[str, ...]  # names of the nodes; a client's number is its index here
    form: DataSchema
    settings: Settings
    version: int = 1  # one more with every change
    surveyed: int | None = None  # if a survey has settled the form of data: below how many rows nothing was told

    @property
    def address(self) -> str:
        """Where nodes connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def write(self, path: Path) -> None:
        """Write it as YAML."""
        write_text(path, self.text())

    @property
    def is_draft(self) -> bool:
        """Whether a survey has still to settle what data look like."""
        return self.form is DRAFT

    def describe_form(self) -> dict[str, Any] | None:
        """What data look like, as plain values; None in a draft."""
        if self.is_draft:
            return None
        return {
            "classes": list(self.form.classes),
            "shape": list(self.form.shape),
            "columns": list(self.form.columns) if self.form.columns is not None else None,
            "mean": self.form.mean.tolist(),
            "std": self.form.std.tolist(),
            **({} if self.form.target is None else {"target": target_values(self.form.target)}),
        }

    def text(self) -> str:
        """The agreement as YAML."""
        values = {
            "federation": self.name,
            **({"version": self.version} if self.version > 1 else {}),
            "protocol": PROTOCOL,
            "host": self.host,
            "port": self.port,
            "members": list(self.members),
            **({"surveyed": self.surveyed} if self.surveyed is not None else {}),
            "data": self.describe_form(),
            "settings": self.settings.model_dump(mode="json"),
        }
        return HEADER + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

    @classmethod
    def read(cls, text: str, source: str) -> Agreement:
        """Read it; a damaged one is a clear error that names its source."""
        try:
            values: dict[str, Any] = yaml.safe_load(text)
            if (protocol := int(values.get("protocol", PROTOCOL))) > PROTOCOL:
                raise SettingError(
                    f"it is of protocol {protocol}, and this Fedframe speaks {PROTOCOL}; install a newer one."
                )
            form = read_form(values["data"])
            members = tuple(map(str, values["members"]))
            agreement = cls(
                str(values["federation"]), str(values["host"]), int(values["port"]), members, form,
                check({"min_clients": None, **values["settings"]}), int(values.get("version", 1)),
                int(values["surveyed"]) if "surveyed" in values else None,
            )  # fmt: skip
            agreement.check()
        except SettingError as error:
            raise DataError(f"{source}: {error}") from error
        except DAMAGE as error:
            raise DataError(f"{source} is no federation's agreement: {' '.join(str(error).split())[:200]}.") from error
        return agreement

    def check(self) -> None:
        """Refuse values that no federation can have."""
        check_members(self.members)
        mean, std = self.form.mean, self.form.std
        if plain_host(self.host) is None or not 1 <= self.port <= 65535:
            raise ValueError("nobody can connect to its host and port")
        if len(self.form.shape) not in (1, 3) or min(self.form.shape) < 1:
            raise ValueError("its shape is impossible")
        if not bool(mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
            raise ValueError("its mean is not finite, or its std not above 0")


# What stands in a draft for the form of data, which a survey settles: no samples have it.
DRAFT = DataSchema((), (1,), None, torch.zeros(1), torch.ones(1))


def read_form(data: dict[str, Any] | None) -> DataSchema:
    """What data look like, from plain values."""
    if data is None:
        return DRAFT
    mean, std = (torch.tensor(data[name], dtype=torch.float32) for name in ("mean", "std"))
    columns = tuple(data["columns"]) if data["columns"] is not None else None
    return DataSchema(
        tuple(map(str, data["classes"])),
        tuple(map(int, data["shape"])),
        columns,
        mean,
        std,
        read_target(data.get("target")),
    )


def target_values(target: Target) -> dict[str, Any]:
    """What is learned where it is no class, as plain values."""
    scale = (
        {} if target.mean is None or target.std is None else {"mean": target.mean.tolist(), "std": target.std.tolist()}
    )
    return {"task": target.task, "names": list(target.names), **scale}


def read_target(values: dict[str, Any] | None) -> Target | None:
    """The same from plain values."""
    if values is None:
        return None
    names, task = tuple(map(str, values["names"])), values["task"]
    if task not in ("regression", "multilabel") or not names:
        raise ValueError("its target is none that can be learned")
    if task == "multilabel":
        return Target("multilabel", names)
    mean, std = (torch.tensor(values[name], dtype=torch.float32) for name in ("mean", "std"))
    if mean.shape != (len(names),) or mean.shape != std.shape:
        raise ValueError("its target's mean and std are not as many as its numbers")
    if not bool(mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
        raise ValueError("its target's mean is not finite, or its std not above 0")
    return Target("regression", names, mean, std)


def check_members(names: tuple[str, ...]) -> None:
    """Refuse names that cannot be file names or that two nodes share."""
    for name in names:
        if not NAME.fullmatch(name) or name.isdecimal():
            raise SettingError(f"nodes: {name[:60]!r} is no name; use letters, digits, - and _, such as north-clinic.")
    if len(set(map(str.lower, names))) < len(names):
        raise SettingError("nodes: two nodes have the same name; give each node its own.")
    if len(names) < 2:
        raise SettingError("nodes: a federation has at least two; write --nodes north,south,west.")
