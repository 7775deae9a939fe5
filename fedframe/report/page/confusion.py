"""What is taken for what: the confusion matrix of the shared model."""

from __future__ import annotations

from fedframe.report.page.names import cut_note, shown_classes
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.section import Data, Section, of_single_runs

TITLE = "Confusion matrix"
READ = (
    "Rows are the true classes of the global test set, columns what the shared model says; everything off the "
    "diagonal is a mistake, and a strong colour there marks a pair of classes that it mixes up."
)


def section(subject: Subject) -> Section:
    """The matrix of each method's first run."""
    return of_single_runs(subject, Section("confusion", TITLE, READ, wide=False), build, spoken)


def build(run: Run) -> Data | None:
    """Counts with the names of the classes."""
    counts = run.examination.get("confusion")
    if not counts:
        return None
    names = shown_classes(run.examination, len(counts))
    return {"classes": names, "counts": counts, "note": cut_note(run.examination, len(counts))}


def spoken(data: Data) -> str:
    """The most frequent mistakes in words."""
    counts, names = data["counts"], data["classes"]
    total = sum(map(sum, counts))
    right = sum(counts[i][i] for i in range(len(counts)))
    cells = [(counts[i][j], names[i], names[j]) for i in range(len(counts)) for j in range(len(counts)) if i != j]
    worst = sorted(cells, key=lambda cell: -cell[0])[:3]
    mistakes = ", ".join(f"{true} taken for {said} ({count} times)" for count, true, said in worst if count)
    return f"{right:,} of {total:,} test samples are right. Most frequent mistakes: {mistakes or 'none'}."
