"""How similar the clients' own models are: their classifiers pair by pair, their nets layer by layer."""

from __future__ import annotations

from fedframe.analysis.explanations import READINGS
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, if_examined, of_single_runs, rounded

HEADS = Section(
    "heads",
    "Classifiers of the clients",
    "Clients against clients: how alike their own classifiers are (SphereFed, Eq. 2 and 3). Cosines near 1 mean that "
    "classes point the same way for both.",
    wide=False,
)
NO_HEADS = "The clients of this run have no classifiers of their own, or none were saved."


def heads_section(subject: Subject) -> Section:
    """The heat map of pairs of clients of each method's first run."""
    return of_single_runs(subject, HEADS, heads_data, heads_text, if_examined(subject, NO_HEADS))


def heads_data(run: Run) -> Data | None:
    """Cosines and differences of length."""
    found = run.examination.get("classifier_drift")
    if not found or not found.get("cosine"):
        return None
    return {
        "clients": [run.client_name(int(client)) for client in found["clients"]],
        "cosine": [[rounded(value, 4) for value in row] for row in found["cosine"]],
        "norm": [[rounded(value, 4) for value in row] for row in found.get("norm_difference") or []],
    }


def heads_text(data: Data) -> str:
    """How many clients are compared, in words."""
    return f"Pairs of {len(data['clients'])} clients; see the table for the numbers."


SIMILARITY = Section("alike", "Agreement between clients' nets", READINGS["cka"], wide=False)
NO_SIMILARITY = "Needs the personal models of two clients or more; none were saved in this run."


def similarity_section(subject: Subject) -> Section:
    """Linear CKA by layer, and the similarity of the clients' class means."""
    return of_single_runs(subject, SIMILARITY, similarity_data, similarity_text, if_examined(subject, NO_SIMILARITY))


def similarity_data(run: Run) -> Data | None:
    """Similarities of the layers, from input to output, and of the prototypes."""
    found = run.examination.get("cka")
    if not found or not found.get("layers"):
        return None
    prototypes = run.examination.get("prototypes") or {}
    known = {
        name: (value or {}).get("mean") if isinstance(value, dict) else value for name, value in prototypes.items()
    }
    return {
        "layers": [str(name) for name in found["layers"]],
        "similarity": [rounded(value, 4) for value in found["similarity"]],
        "clients": len(found.get("clients") or []),
        "prototypes": {name: rounded(value, 4) for name, value in known.items() if isinstance(value, float)},
        "prototypes_read": READINGS["prototypes"],
    }


def similarity_text(data: Data) -> str:
    """Layer by layer, in words."""
    return ", ".join(f"{name}: {value}" for name, value in zip(data["layers"], data["similarity"], strict=True))
