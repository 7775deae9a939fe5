"""Fedframe: federated learning on data that disagree.

`fedframe.run("fedavg", data="digits")` trains and returns scores, model and history; `fedframe.resume(folder)` goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedframe.api import Result, resume, run
    from fedframe.predictor import Predictor

__all__ = ["Predictor", "Result", "__version__", "resume", "run"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: only what is used is loaded, so that `fedframe --help` answers at once.
    if name in ("run", "resume", "Result"):
        import fedframe.api as module

        return getattr(module, name)
    if name == "Predictor":
        from fedframe.predictor import Predictor

        return Predictor
    raise AttributeError(f"module 'fedframe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
