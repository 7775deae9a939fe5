"""Who has what: training samples by client and class."""

from __future__ import annotations

from fedframe.report.page.names import shown_classes
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, of_single_runs
from fedframe.util.text import plural

TITLE = "Who has what"
READ = (
    "Each column is a client, each row a class; the stronger the colour, the more training samples of that class the "
    "client holds. Uneven columns are what makes federated learning hard."
)
MOST_CLIENTS = 1000  # that an examination counts


def section(subject: Subject) -> Section:
    """The client x class picture."""
    return of_single_runs(subject, Section("partition", TITLE, READ), build, spoken)


def build(run: Run) -> Data | None:
    """Counts, names and sizes of a run's clients."""
    found = run.examination.get("partition")
    if not found or not found.get("counts"):
        return None
    counts = found["counts"]
    names = found.get("names") or [run.client_name(client) for client in found["clients"]]
    return {
        "classes": shown_classes(run.examination, len(counts[0])),
        "clients": [str(name) for name in names],
        "counts": counts,
        "sizes": found.get("sizes") or [sum(row) for row in counts],
        "note": note(len(counts), int(run.config.get("clients") or len(counts))),
    }


def note(shown: int, total: int) -> str:
    """Who is not in the picture, and why."""
    if shown >= total:
        return ""
    if shown >= MOST_CLIENTS:
        return f"{shown:,} of {total:,} clients are shown."
    return f"{plural(total - shown, 'client')} kept out of the training, to be scored as new, not shown."


def spoken(data: Data) -> str:
    """The spread of sizes and of classes in words."""
    sizes = data["sizes"]
    held = [sum(count > 0 for count in row) for row in data["counts"]]
    return (
        f"{len(sizes)} clients hold {min(sizes):,} to {max(sizes):,} training samples each, of {min(held)} to "
        f"{max(held)} of {len(data['classes'])} classes."
    )
