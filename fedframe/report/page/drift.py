"""Drift: how well each client's update agrees with the step that the server takes, round by round."""

from __future__ import annotations

import math

from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, of_single_runs, rounded

TITLE = "Client drift"
READ = (
    "Each row is a client, each column a round: blue clients pull in the direction that the shared model takes, orange "
    "ones against it, grey ones were not in the round. Rows that stay faint are clients whose data disagree."
)
OFF = "Not measured; run with --measure drift to see it."
MOST_CELLS = 150_000  # of all methods together: about two megabytes
MOST_CLIENTS = 1000


def section(subject: Subject) -> Section:
    """The heat map of clients and rounds of each method's first run."""
    cells = MOST_CELLS // len(subject.groups)
    return of_single_runs(subject, Section("drift", TITLE, READ), lambda run: build(run, cells), alt_text, OFF)


def build(run: Run, most_cells: int = MOST_CELLS) -> Data | None:
    """Cosines and lengths by client and round; None where a client was not in the round."""
    lines = [line for line in run.drift if line.get("clients")]
    if not lines:
        return None
    everyone = sorted({int(client) for line in lines for client in line["clients"]})
    clients = everyone[:MOST_CLIENTS]
    stride = math.ceil(len(clients) * len(lines) / most_cells)
    shown = [line for i, line in enumerate(lines) if (len(lines) - 1 - i) % stride == 0]  # the last one always
    return {
        "clients": [run.client_name(client) for client in clients],
        "rounds": [int(line["round"]) for line in shown],
        **{kind: matrix(shown, clients, kind) for kind in ("cosine", "norm")},
        "note": note(len(clients), len(everyone), stride),
    }


def matrix(lines: list[Data], clients: list[int], kind: str) -> list[list[float | None]]:
    """A row per client, a column per line."""
    columns = [dict(zip(map(int, line["clients"]), line.get(kind) or [], strict=False)) for line in lines]
    return [[rounded(column.get(client), 3) for column in columns] for client in clients]


def note(shown: int, total: int, stride: int) -> str:
    """What was left out, in words."""
    texts = [f"The first {shown:,} of {total:,} clients are shown."] if shown < total else []
    if stride > 1:
        texts.append(f"One round in {stride} is shown.")
    return " ".join(texts)


def alt_text(data: Data) -> str:
    """The first and the last rounds' mean in words."""

    def mean(column: int) -> str:
        known = [row[column] for row in data["cosine"] if row[column] is not None]
        return f"{sum(known) / len(known):.2f}" if known else "unknown"

    return (
        f"Mean cosine of the clients' updates with the server's step: {mean(0)} in round {data['rounds'][0]}, "
        f"{mean(-1)} in round {data['rounds'][-1]}, over {len(data['clients'])} clients."
    )
