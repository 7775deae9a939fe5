"""Settings from all places that may give them: the call, a file, the method's recipe, the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedframe.methods.recipes import recipe_defaults
from fedframe.settings import Settings, check, merge_part_settings, read_config


def gather(given: Mapping[str, Any], config: str | Path | None) -> Settings:
    """Settings by precedence: given > config file > recipe > default."""
    file = read_config(Path(config)) if config is not None else {}
    method = given.get("method") or file.get("method") or Settings.model_fields["method"].default
    brought = recipe_defaults(str(method))
    if {**file, **given}.get("optimizer", "sgd") != "sgd":  # what the recipe says of SGD does not suit another
        brought = {name: value for name, value in brought.items() if name not in ("lr", "momentum", "nesterov")}
    values = {**brought, **file, **given}
    values["set"] = merge_part_settings(file.get("set") or {}, given.get("set") or {})
    return check(values)
