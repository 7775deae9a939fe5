"""Measures: what a run's models are like, how far its clients drifted, and what it cost.

`examine(folder)` looks at a finished run; the setting `measure` turns on what is measured in rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedframe.measure.examination import examine

__all__ = ["examine"]


def __getattr__(name: str) -> Any:
    # The examination stands on runs and their folders, which import this room: loaded only when it is used.
    if name == "examine":
        from fedframe.measure.examination import examine

        return examine
    raise AttributeError(f"module 'fedframe.measure' has no attribute {name!r}")
