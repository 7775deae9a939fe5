"""Numbers as people read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedframe.settings import NOWHERE, short_method

if TYPE_CHECKING:
    from fedframe.core.evaluate import Scores
    from fedframe.core.job import Job


def percent(share: float | None) -> str:
    """0.8312 as 83.1 %; a dash for what was not measured."""
    return "–" if share is None else f"{100 * share:.1f} %"  # noqa: RUF001


def duration(seconds: float) -> str:
    """75 as 1 min 15 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def scores_text(scores: Scores) -> str:
    """The scores of a round in one line; personal ones where clients have models of their own between rounds."""
    shared = f"generic {percent(scores.generic)}  client {percent(scores.client)}"
    return shared if scores.personal is None else f"{shared}  personal {percent(scores.personal)}"


def data_text(name: str) -> str:
    """What data are called; those of a federation have no name."""
    return "the nodes' data" if name == NOWHERE else name


def headline(job: Job, folder: Path) -> str:
    """What is run, in one line."""
    settings, source = job.settings, job.federation.source
    each = max(1, int(settings.participation * len(job.federation) + 0.5))
    return (
        f"{short_method(settings.method)} on {data_text(source.name)}: "
        f"{len(job.federation.train.values):,} training samples, "
        f"{plural(len(source.classes), 'class', 'classes')}, "
        f"{plural(len(job.federation), 'client')} ({settings.partition}), "
        f"{each} a round, {plural(settings.rounds, 'round')}, "
        f"{settings.model.rpartition('/')[2]} with {job.parameters:,} parameters -> {folder}"
    )


def plural(count: int, what: str, several: str = "") -> str:
    """1 client, 2 clients; `several` where an s does not do."""
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def loss_text(loss: float) -> str:
    """A loss in few characters, however large."""
    return f"loss {loss:.4f}" if loss < 1000 else f"loss {loss:.1e}"
