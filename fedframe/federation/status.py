"""`fedframe federation status`: who is connected and how far the training is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedframe.core.measures import is_share
from fedframe.errors import RunError
from fedframe.federation.folder import FederationFolder
from fedframe.federation.serve import connect_superlink
from fedframe.runs.folder import RunFolder
from fedframe.util.text import figure


def status_lines(folder: FederationFolder) -> list[str]:
    """The lines that describe a federation's state."""
    agreement = folder.agreement()
    serving, training = folder.process("serve"), folder.process("start")
    lines = [
        f"{agreement.name}: {agreement.settings.method}, {agreement.settings.rounds} rounds, at {agreement.address}"
    ]
    try:
        superlink = connect_superlink(folder)
        try:
            known = superlink.nodes()
        finally:
            superlink.close()
        lines.append(f"SuperLink: running{f' (process {serving})' if serving else ''}")
        lines += [
            f"  {name:20} {known[name].status if name in known else 'not registered'}" for name in agreement.members
        ]
    except RunError:
        path = shlex.quote(folder.path.as_posix())
        lines.append(f"SuperLink: not running; start it with: fedframe federation serve {path}")
    runs = sorted(folder.runs.glob("[0-9]*"), key=lambda path: int(path.name)) if folder.runs.is_dir() else []
    for run_path in runs:
        run = RunFolder(run_path)
        metrics = run.metrics()
        state = "finished" if run.finished else f"training (process {training})" if training else "stopped"
        scores = "".join(f", {text}" for text in last_scores(metrics, is_share(run.settings().score_metric)))
        lines.append(f"run {run_path.name}: {len(metrics)} of {agreement.settings.rounds} rounds, {state}{scores}")
    return lines


def last_scores(metrics: Sequence[Mapping[str, Any]], share: bool) -> list[str]:
    """The newest value of every score, with its round where that is not the last: nodes' scores come a round later."""
    found = []
    for score in ("generic", "client", "personal"):
        values = [(line["round"], line[score]) for line in metrics if line.get(score) is not None]
        if values:
            round, value = values[-1]
            older = f" (round {round})" if round != metrics[-1]["round"] else ""
            found.append(f"{score} {figure(value, share)}{older}")
    return found
