"""Runs that failed, for whoever has to end with an error: which, and why, in a line each."""

from __future__ import annotations

from collections.abc import Sequence

from fedframe.errors import RunError
from fedframe.experiments.grid.cell import Outcome
from fedframe.util.text import plural


def failure_text(failed: Sequence[Outcome], total: int) -> str:
    """A sentence, and a line for each run that failed; one that diverged has an outcome and is none of them."""
    lines = [f"  {outcome.cell.name}: {' '.join(outcome.reason.split())}" for outcome in failed]
    runs = plural(total, "run")
    if len(failed) == total:
        return "\n".join([f"Not one of {runs} could be made; the same command tries again:", *lines])
    head = f"{len(failed)} of {runs} failed; the tables have the others, and the same command tries these again:"
    return "\n".join([head, *lines])


def refuse_failures(failed: Sequence[Outcome], total: int) -> None:
    """End a command with an error if a run of it failed, so that scripts notice."""
    if failed:
        raise RunError(failure_text(failed, total))
