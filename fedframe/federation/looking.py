"""`fedframe federation status`: who is connected and how far the training is."""

from __future__ import annotations

from fedframe.errors import RunError
from fedframe.federation.folder import FederationFolder
from fedframe.federation.serving import link_to
from fedframe.folder import RunFolder
from fedframe.report.words import percent


def status_lines(folder: FederationFolder) -> list[str]:
    """What to print."""
    agreement = folder.agreement()
    serving, training = folder.process("serve"), folder.process("start")
    lines = [
        f"{agreement.name}: {agreement.settings.method}, {agreement.settings.rounds} rounds, at {agreement.address}"
    ]
    try:
        link = link_to(folder)
        try:
            known = link.nodes()
        finally:
            link.close()
        lines.append(f"SuperLink: running{f' (process {serving})' if serving else ''}")
        lines += [
            f"  {name:20} {known[name].status if name in known else 'not registered'}" for name in agreement.members
        ]
    except RunError:
        lines.append(f"SuperLink: not running; start it with 'fedframe federation serve {folder.path}'")
    runs = sorted(folder.runs.glob("[0-9]*"), key=lambda path: int(path.name)) if folder.runs.is_dir() else []
    for path in runs:
        run = RunFolder(path)
        metrics = run.metrics()
        state = "finished" if run.finished else f"training (process {training})" if training else "stopped"
        last = f", client {percent(metrics[-1].get('client'))}" if metrics else ""
        lines.append(f"run {path.name}: {len(metrics)} of {agreement.settings.rounds} rounds, {state}{last}")
    return lines
