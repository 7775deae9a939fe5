"""Packages that only some need: imported where they are used, with a sentence that says how to install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedframe.errors import FedframeError, SettingError


@contextmanager
def extra(name: str, needs: str, error: type[FedframeError] = SettingError) -> Iterator[None]:
    """Around an import: where the package is missing, say what needs it and which extra of Fedframe installs it."""
    try:
        yield
    except ImportError:
        raise error(f"{needs}: pip install 'fedframe[{name}]'.") from None
