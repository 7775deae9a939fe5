"""What a node tells of its errors."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from fedframe.engines.flower.node import what_is_told
from fedframe.errors import DataError, RunError


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DataError("The order has no learning rate."), "The order has no learning rate."),
        (raised(RunError("Could not write /home/ann/secret: full"), OSError(28, "No space left")), "(No space left)"),
        (raised(RunError("client 1: ValueError: patient 7"), ValueError("patient 7")), "it raised ValueError;"),
        (KeyError("patient 7"), "it raised KeyError;"),
    ],
)
def test_an_error_is_told_by_its_kind_only(error: Exception, told: str) -> None:
    text = what_is_told(error)
    assert told in text
    assert "patient" not in text
    assert "/home" not in text
