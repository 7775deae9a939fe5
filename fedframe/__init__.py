"""Fedframe: federated learning on data that disagree.

`fedframe.run("fedavg", data="digits")` trains and returns scores, model and history; `fedframe.resume(folder)` goes on;
`fedframe.personalise(folder, data)` makes a personal model for a client that was not in the training;
`fedframe.compare(["fedavg", "fedetf"], seeds=5)` sets methods side by side; `fedframe.measure.examine(folder)` looks at
what a finished run's models are like.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedframe.api import Result, resume, run
    from fedframe.comparing.result import Comparison
    from fedframe.comparing.running import compare, compare_each
    from fedframe.core.part import Part
    from fedframe.personalising import Newcomer, personalise
    from fedframe.predictor import Predictor
    from fedframe.recipes import Recipe

__all__ = [
    "Comparison",
    "Newcomer",
    "Part",
    "Predictor",
    "Recipe",
    "Result",
    "__version__",
    "compare",
    "compare_each",
    "personalise",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: only what is used is loaded, so that `fedframe --help` answers at once.
    if name in ("run", "resume", "Result"):
        import fedframe.api as module

        return getattr(module, name)
    if name in ("personalise", "Newcomer"):
        import fedframe.personalising

        return getattr(fedframe.personalising, name)
    if name in ("compare", "compare_each", "Comparison"):
        import fedframe.comparing.running

        return getattr(fedframe.comparing.running, name)
    if name == "measure":
        return import_module("fedframe.measure")
    if name == "Predictor":
        from fedframe.predictor import Predictor

        return Predictor
    if name == "Part":
        from fedframe.core.part import Part

        return Part
    if name == "Recipe":
        from fedframe.recipes import Recipe

        return Recipe
    raise AttributeError(f"module 'fedframe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
