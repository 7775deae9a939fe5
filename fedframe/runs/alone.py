"""Training alone with the budget of a run: the settings of the recipe `local` that a run is compared with."""

from __future__ import annotations

from typing import Any

from fedframe.methods.recipes import make_method
from fedframe.settings import Settings

# Not needed alone: noise that hides updates which nobody sends, and what is about other machines.
NOT_ALONE = ("privacy_clip", "privacy_noise", "privacy_at", "engine", "secure", "min_clients", "patience", "nodes")
OTHERS = ("method", "set", "data", "model", "log", "measure")


def alone_settings(settings: Settings, save: bool) -> dict[str, Any]:
    """Everything that training alone has in common with a run, but for method, data and net; `save` keeps models."""
    stage = make_method(settings.method, settings.set).slot("client_stage")
    values = settings.model_dump(exclude={*OTHERS, *NOT_ALONE})
    after = {"fine_tune": {"epochs": getattr(stage, "epochs", 0)}}
    return {**values, "personal": True, "save_personal": save, "set": after}
