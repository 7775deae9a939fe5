"""Fedframe: federated learning on data that disagree.

`fedframe.run("fedavg", data="digits")` trains and returns scores, model and history; `fedframe.resume(folder)` goes on;
`fedframe.personalise(folder, data)` makes a personal model for a client that was not in the training;
`fedframe.compare(["fedavg", "fedetf"], seeds=5)` sets methods side by side; `fedframe.measure.examine(folder)` looks at
what a finished run's models are like.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedframe.util.version import __version__

if TYPE_CHECKING:
    from fedframe import analysis as measure
    from fedframe.api import Result, resume, run
    from fedframe.core import (
        ALL_DATA,
        ClientContext,
        HeadStage,
        Key,
        Merger,
        Message,
        Method,
        Model,
        ModelSize,
        Part,
        RunningMean,
        Server,
        State,
        Upload,
    )
    from fedframe.experiments.compare.result import Comparison
    from fedframe.experiments.compare.run import compare, compare_each
    from fedframe.methods.recipes import Recipe
    from fedframe.runs.personalise import NewClient, personalise
    from fedframe.runs.predictor import Predictor
    from fedframe.util.allowed_code import allow_code

# Where each public name lives. torch takes seconds to import: a module is loaded when a name of it is first used, so
# that `fedframe --help` answers at once.
EXPORTS = {
    "ALL_DATA": "fedframe.core",
    "ClientContext": "fedframe.core",
    "Comparison": "fedframe.experiments.compare.result",
    "HeadStage": "fedframe.core",
    "Key": "fedframe.core",
    "Merger": "fedframe.core",
    "Message": "fedframe.core",
    "Method": "fedframe.core",
    "Model": "fedframe.core",
    "ModelSize": "fedframe.core",
    "NewClient": "fedframe.runs.personalise",
    "Part": "fedframe.core",
    "Predictor": "fedframe.runs.predictor",
    "Recipe": "fedframe.methods.recipes",
    "Result": "fedframe.api",
    "RunningMean": "fedframe.core",
    "Server": "fedframe.core",
    "State": "fedframe.core",
    "Upload": "fedframe.core",
    "allow_code": "fedframe.util.allowed_code",
    "compare": "fedframe.experiments.compare.run",
    "compare_each": "fedframe.experiments.compare.run",
    "forget": "fedframe.runs.join_forget",
    "join": "fedframe.runs.join_forget",
    "personalise": "fedframe.runs.personalise",
    "resume": "fedframe.api",
    "run": "fedframe.api",
}

__all__ = [
    "ALL_DATA",
    "ClientContext",
    "Comparison",
    "HeadStage",
    "Key",
    "Merger",
    "Message",
    "Method",
    "Model",
    "ModelSize",
    "NewClient",
    "Part",
    "Predictor",
    "Recipe",
    "Result",
    "RunningMean",
    "Server",
    "State",
    "Upload",
    "__version__",
    "allow_code",
    "compare",
    "compare_each",
    "forget",
    "join",
    "measure",
    "personalise",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "measure":
        return import_module("fedframe.analysis")
    if name in EXPORTS:
        return getattr(import_module(EXPORTS[name]), name)
    raise AttributeError(f"module 'fedframe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
