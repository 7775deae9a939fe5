"""Drift of classifiers: how alike the clients' own classifiers are, pair by pair."""

from __future__ import annotations

from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, if_examined, of_single_runs, rounded

TITLE = "Classifiers of the clients"
READ = (
    "Clients against clients: how alike their own classifiers are (SphereFed, Eq. 2 and 3). Cosines near 1 mean that "
    "classes point the same way for both."
)
NONE = "The clients of this run have no classifiers of their own, or none were saved."


def section(subject: Subject) -> Section:
    """The client x client picture of each method's first run."""
    return of_single_runs(subject, Section("heads", TITLE, READ, wide=False), build, spoken, if_examined(subject, NONE))


def build(run: Run) -> Data | None:
    """Cosines and differences of length."""
    found = run.examination.get("classifier_drift")
    if not found or not found.get("cosine"):
        return None
    return {
        "clients": [run.client_name(int(client)) for client in found["clients"]],
        "cosine": [[rounded(value, 4) for value in row] for row in found["cosine"]],
        "norm": [[rounded(value, 4) for value in row] for row in found.get("norm_difference") or []],
    }


def spoken(data: Data) -> str:
    """How many clients are compared, in words."""
    return f"Pairs of {len(data['clients'])} clients; see the table for the numbers."
