"""An examination in words: each figure with its name, its value and how to read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedframe.analysis.explanations import COLLAPSE, DRIFT, READINGS
from fedframe.core.measures import is_share
from fedframe.util.text import change, duration, figure, percent, points

Line = tuple[str, str, str]  # name, value, how to read it
LISTED = 10  # classes that are named one by one
WORST = 3


def summary_sections(
    examination: Mapping[str, Any], summary: Mapping[str, Any], history: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, list[Line]]]:
    """An examination as lines of text in groups with a heading; what was not measured is left out."""
    groups = {
        "Accuracy": [*scores(summary), *accuracy(examination)],
        "Neural collapse (0 is collapsed)": list(collapse(examination)),
        "Clients beside each other": list(clients(examination)),
        "In rounds, from the first that was measured to the last": list(rounds(history)),
        "Features": list(features(examination)),
        "Cost": list(cost(examination.get("cost") or {})),
    }
    for heading, lines in groups.items():
        if lines:
            yield heading, lines


def line(name: str, value: str, key: str | None = None) -> Line:
    """A figure with the sentence that explains it."""
    return name, value, READINGS[key or name]


def number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.3g}"


def scores(summary: Mapping[str, Any]) -> Iterator[Line]:
    """The run's final scores and their spread over clients."""
    share = is_share(summary.get("metric", "accuracy"))
    for score, found in (summary.get("scores") or {}).items():
        if found.get("final") is not None:
            beside = f" (shared model {figure(found['client'], share)})" if score == "new" else ""
            yield line(score, figure(found["final"], share) + beside)
    spreads = [
        f"{score}: std {change(found['std'], share).removeprefix('+')}{points(share)}, worst tenth "
        f"{figure(found['worst_tenth'], share)}"
        for score, found in (summary.get("spread") or {}).items()
        if found
    ]
    if spreads:
        yield line("spread", "; ".join(spreads))


def accuracy(examination: Mapping[str, Any]) -> Iterator[Line]:
    """Accuracy by class and group, the most frequent mistakes, and calibration."""
    classes, by_class = examination["classes"], examination.get("per_class")
    if by_class:
        known = [(value, name) for value, name in zip(by_class, classes, strict=True) if value is not None]
        pairs = sorted(known, key=lambda pair: pair[0])[:LISTED] if len(known) > LISTED else known
        text = ", ".join(f"{name} {percent(value)}" for value, name in pairs)
        yield line("per_class", f"the worst of {len(known)}: {text}" if len(known) > LISTED else text)
    if examination.get("groups"):
        yield line("groups", ", ".join(f"{name} {percent(value)}" for name, value in examination["groups"].items()))
    if examination.get("confusion"):
        yield line("confusion", mistakes(examination))
    if examination.get("ece"):
        yield line("ece", number(examination["ece"]["error"]))


def mistakes(examination: Mapping[str, Any]) -> str:
    """The most frequent mistakes, in words."""
    shown = examination.get("shown_classes") or range(len(examination["classes"]))
    names = [examination["classes"][c] for c in shown]
    cells = [
        (count, names[i], names[j])
        for i, row in enumerate(examination["confusion"])
        for j, count in enumerate(row)
        if i != j and count
    ]
    worst = sorted(cells, key=lambda cell: -cell[0])[:WORST]
    return ", ".join(f"{i} taken for {j}: {count} times" for count, i, j in worst) or "no mistakes"


def collapse(examination: Mapping[str, Any]) -> Iterator[Line]:
    """NC1 to NC4, and the classifier's angles."""
    for name, value in (examination.get("collapse") or {}).items():
        if value is not None:
            yield line(name, number(value))
    gram = examination.get("gram")
    if gram and gram["ideal"] is not None and len(gram["cosines"]) > 1:
        apart = [value for i, row in enumerate(gram["cosines"]) for j, value in enumerate(row) if i != j]
        yield line("gram", f"{number(min(apart))} to {number(max(apart))}, ideal {number(gram['ideal'])}")


def clients(examination: Mapping[str, Any]) -> Iterator[Line]:
    """How similar the clients' own models are."""
    drift, cka = examination.get("classifier_drift"), examination.get("cka")
    prototypes = {k: v for k, v in (examination.get("prototypes") or {}).items() if v is not None}
    if prototypes:
        yield line("prototypes", ", ".join(f"{which} {number(value)}" for which, value in prototypes.items()))
    if drift and drift["mean_cosine"] is not None:
        text = f"cosine {number(drift['mean_cosine'])}, length differs by {number(drift['mean_norm_difference'])}"
        yield line("classifier_drift", f"{text} (over {len(drift['clients'])} clients)")
    if cka and cka["layers"]:
        pairs = zip(cka["layers"], cka["similarity"], strict=True)
        yield line("cka", ", ".join(f"{layer} {number(value)}" for layer, value in pairs))


def rounds(history: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """The figures of rounds that the setting `measure` adds, first and last; scores and costs are not among them."""
    for name in (*COLLAPSE, *DRIFT):
        values = [each[name] for each in history if each.get(name) is not None]
        if values:
            yield line(name, f"{number(values[0])} to {number(values[-1])}")


def features(examination: Mapping[str, Any]) -> Iterator[Line]:
    """Feature degeneration: accuracy with the largest features only."""
    found = examination.get("degeneration")
    if found and found["pruning"]:
        curve = {point["kept"]: point["accuracy"] for point in found["pruning"]}
        text = ", ".join(f"{percent(curve[share])} with the largest {100 * share:.0f} %" for share in (1.0, 0.5, 0.2))
        yield line("degeneration", text)


def cost(found: Mapping[str, Any]) -> Iterator[Line]:
    """Time, memory, operations and bytes."""
    if found.get("cpu_seconds") is not None:
        yield line("cpu_seconds", duration(found["cpu_seconds"]))
    if found.get("peak_memory_mb") is not None:
        yield line("peak_memory_mb", f"{found['peak_memory_mb']:.0f} MB")
    if found.get("flops_per_sample") is not None:
        yield line("flops_per_sample", f"{found['flops_per_sample']:,}")
    if found.get("by_part"):
        parts = (f"{part} {megabytes(n['up'])} up, {megabytes(n['down'])} down" for part, n in found["by_part"].items())
        yield line("by_part", "; ".join(parts))
    if found.get("stages"):
        each = (
            f"{name.replace('_', ' ')} {megabytes(n['bytes_up'])} up, {megabytes(n['bytes_down'])} down, "
            f"{duration(n['seconds'])}"
            for name, n in found["stages"].items()
        )
        yield line("stages", "; ".join(each))


def megabytes(count: int) -> str:
    """Bytes as megabytes."""
    return f"{count / 1e6:,.3g} MB" if count < 1e9 else f"{count / 1e6:,.0f} MB"
