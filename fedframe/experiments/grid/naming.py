"""Folders that are named after all that decides on a run's result: equal runs share one, different ones never meet."""

from __future__ import annotations

import hashlib
import json
import re

from fedframe.experiments.grid.cell import MACHINE
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings


def digest(settings: Settings, *more: object) -> str:
    """Eight characters that change with any setting but those of the machine and the seed.

    The parts count as well: a method whose defaults have changed since gets another folder. `more` is plain data that
    decides on the result beside the settings.
    """
    decides = settings.model_dump(mode="json", exclude=set(MACHINE) | {"seed"}, exclude_defaults=True)
    parts = [repr(part) for part in make_method(settings.method, settings.set).parts]
    text = json.dumps([decides, parts, *more], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def slug(text: str, longest: int = 60) -> str:
    """A text as part of a folder's name."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.")[:longest] or "run"
