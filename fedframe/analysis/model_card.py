"""A model card in Markdown: what a model was trained on, how good it is, for whom, and what its limits are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedframe.core.evaluation import EASIER_TASK, spoken_definitions
from fedframe.core.measures import METRICS, NUMBER_METRICS, is_share, metric_name
from fedframe.runs.folder import CLIENT_SCORES, RunFolder
from fedframe.runs.predictor import Predictor
from fedframe.runs.round_files import SUMMARY
from fedframe.settings import REMOTE_DATA, Settings, data_name, short_method
from fedframe.util.text import figure, interval, percent, plural, sentence
from fedframe.util.version import __version__

MOST_CLIENTS = 50  # rows of a table
FOR_LABELS = ("auroc", "average_precision", "f1")
OUTPUT = {
    "classification": "probabilities of {} classes",
    "regression": "{} predicted numbers in their own units",
    "multilabel": "the probability of each of {} labels, which do not exclude each other",
}
KNOWS = {
    "classification": "It knows only the classes above: an input of another kind still gets one of them.",
    "regression": "It gives a number for any input, even one far from the data it was trained on.",
    "multilabel": "It knows only the labels above.",
}


def model_card(run: RunFolder, predictor: Predictor, client: int | str | None, file: str, checked: str) -> str:
    """The card of a model that was exported."""
    summary = run.read(SUMMARY) if (run.path / SUMMARY).exists() else {}
    settings = run.settings()
    remote = settings.data == REMOTE_DATA
    owner = client if remote else f"client {client}"
    whose = "The shared model" if client is None else f"The own model of {owner}"
    shape = " x ".join(map(str, predictor.stored_shape))
    lines = [
        f"# {whose} of {short_method(settings.method)} on {data_name(settings.data)}",
        "",
        f"- File: `{file}`. {checked}",
        f"- Input: {shape} numbers as they are in the data; normalisation is inside the model.",
        f"- Output: {output_text(predictor)}.",
        "- Licence: *to be filled in by whoever publishes the model*",
        f"- Made with Fedframe {__version__}.",
        "",
        "## Data and training",
        "",
        f"- Data: {data_name(settings.data)}; {origin(int(summary.get('clients') or settings.clients or 0), settings)}",
        f"- Method: {settings.method}, {settings.rounds} rounds, net `{settings.model}`, seed {settings.seed}.",
        *(class_line(summary.get("train_per_class") or {}, remote) if predictor.target is None else []),
        *privacy_line(summary),
    ]
    if predictor.columns is not None:
        lines.append(f"- Columns, in this order: {', '.join(predictor.columns)}.")
    lines += ["", "## Scores", "", *score_lines(summary, client)]
    if client is not None:
        lines += ["", *own_scores(run, client, str(owner))]
    lines += [*class_table(summary, client), *client_table(run)]
    lines += ["", "## Limits", "", *[f"- {text}" for text in limits(summary, predictor)], ""]
    return "\n".join(lines)


def output_text(predictor: Predictor) -> str:
    """What the model gives, by name."""
    names = predictor.classes
    return f"{OUTPUT[predictor.schema.task].format(len(names))}: {', '.join(names[:50])}"


def origin(count: int, settings: Settings) -> str:
    """Whose the data are, and what became of them."""
    if settings.data == REMOTE_DATA:
        return f"{plural(count, 'site')}. They were not pooled: each site trained on its own data and sent updates."
    return (
        f"{plural(count, 'client')}, split `{settings.partition}`. They were not pooled: each client trained on its "
        "own data and sent updates."
    )


def class_line(counts: Mapping[str, int], remote: bool) -> list[str]:
    """Training samples by class."""
    if not counts:
        return [f"- Training samples by class: known to the {'sites' if remote else 'clients'} only."]
    shown = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:50])
    return [f"- Training samples by class: {shown}."]


def privacy_line(summary: Mapping[str, Any]) -> list[str]:
    """What is promised about single clients."""
    spent = summary.get("privacy")
    if not spent:
        return ["- Differential privacy: none; a model can reveal something about its training data."]
    hidden = {"samples": "single samples"}.get(spent.get("protects", ""), "clients")  # runs of before do not say it
    return [f"- Differential privacy of {hidden}: epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g}."]


def score_lines(summary: Mapping[str, Any], client: int | str | None) -> list[str]:
    """The scores with intervals and samples, and the measures of pooled predictions."""
    scores, words = summary.get("scores", {}), spoken_definitions(summary)
    share, task = is_share(summary.get("metric", "accuracy")), summary.get("task", "classification")
    if not scores:
        return ["This run has no scores."]
    lines = ["| score | value | 95 % interval | test samples | what it is |", "|---|---|---|---|---|"]
    for name, score in scores.items():
        if score.get("final") is not None:
            samples = f"{score['samples']:,}" if score.get("samples") else ""
            meaning = words.get(name, "")
            lines.append(
                f"| {name} | {figure(score['final'], share)} | {interval(score, share)} | {samples} | {meaning} |"
            )
    if task == "classification" and all(
        scores.get(name, {}).get("final") is not None for name in ("generic", "personal")
    ):
        lines += ["", sentence(EASIER_TASK)]
    measures = summary.get("measures", {})
    order = ("generic", "client") if client is None else ("personal",)
    score = next((name for name in order if name in measures), None)
    if score is not None:
        found = measures[score]
        about = f"; measures of a single class are those of {found['positive']!r}" if found.get("positive") else ""
        lines += [
            "",
            f"All predictions of `{score}` together ({found['samples']:,} test samples){about}:",
            "",
            "| measure | value | 95 % interval |",
            "|---|---|---|",
        ]
        for metric in (*METRICS, *NUMBER_METRICS):
            if found.get(metric) is not None:
                other = {"sensitivity": "specificity", "specificity": "sensitivity"}.get(metric)
                at = f" at {100 * found['at']:g} % {other}" if other else ""
                value = figure(found[metric]["value"], is_share(metric))
                ends = interval(found[metric], is_share(metric))
                lines.append(f"| {metric_name(metric)}{at} | {value} | {ends} |")
        if found.get("brier") is not None:
            brier = found["brier"]
            lines.append(f"| Brier score | {brier['value']:.3f} | [{brier['low']:.3f}, {brier['high']:.3f}] |")
        if found.get("calibration_error") is not None:
            lines.append(f"| calibration error | {found['calibration_error']:.3f} | |")
    return lines


def own_scores(run: RunFolder, client: int | str, owner: str) -> list[str]:
    """How this client's own model and the shared one do on its own test data."""
    row = client_row(run, client)
    if row is None:
        return [f"{owner[:1].upper()}{owner[1:]} has no test data of its own, or was not scored."]
    share = is_share(run.read(SUMMARY).get("metric", "accuracy"))
    texts = [
        f"{name} {figure(row[key], share)} "
        f"{interval({'low': row.get(key + '_low'), 'high': row.get(key + '_high')}, share)}".strip()
        for key, name in (("personal", "its own model"), ("client", "the shared model"))
        if row.get(key) is not None
    ]
    return [f"On the {row['test_samples']:,} test samples of {owner}: {', '.join(texts)}."]


def client_row(run: RunFolder, client: int | str) -> dict[str, Any] | None:
    """A client's line of client_scores.json."""
    path = run.path / CLIENT_SCORES
    table = run.read(CLIENT_SCORES) if path.exists() else {}
    names = [str(name) for name in table.get("clients", [])]
    if str(client) not in names:
        return None
    place = names.index(str(client))
    return {key: values[place] for key, values in table.items() if isinstance(values, list)}


def class_table(summary: Mapping[str, Any], client: int | str | None) -> list[str]:
    """How each class is recognised."""
    measures = summary.get("measures", {})
    score = next(
        (name for name in (("generic", "client") if client is None else ("personal",)) if name in measures), ""
    )
    table = measures.get(score, {})
    if each := table.get("per_target") or table.get("per_label"):
        return output_table(score, each)
    found = table.get("per_class")
    if not found:
        return []
    lines = [
        "",
        f"### By class (`{score}`)",
        "",
        "| class | test samples | recall | precision | F1 | AUROC |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        cells = [
            f"{percent(one[key]['value'])} {interval(one[key])}" if one[key] is not None else "–"  # noqa: RUF001
            for key in ("recall", "precision")
        ]
        f1 = one.get("f1")  # runs of before have no interval
        cells.append(f"{percent(f1['value'])} {interval(f1)}" if isinstance(f1, dict) else percent(f1))
        cells.append(
            f"{percent(one['auroc']['value'])} {interval(one['auroc'])}" if one.get("auroc") else percent(None)
        )
        lines.append(f"| {name} | {one['samples']:,} | {' | '.join(cells)} |")
    return lines


def output_table(score: str, each: Mapping[str, Any]) -> list[str]:
    """How each number or label is predicted."""
    metrics = [metric for metric in (*NUMBER_METRICS, *FOR_LABELS) if metric in next(iter(each.values()))]
    heads = " | ".join(map(metric_name, metrics))
    lines = ["", f"### By output (`{score}`)", "", f"| output | {heads} |", "|---" * (len(metrics) + 1) + "|"]
    for name, one in each.items():
        cells = [
            f"{figure(one[key]['value'], is_share(key))} {interval(one[key], is_share(key))}" if one[key] else "–"  # noqa: RUF001
            for key in metrics
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def client_table(run: RunFolder) -> list[str]:
    """How each client is served."""
    path = run.path / CLIENT_SCORES
    table = run.read(CLIENT_SCORES) if path.exists() else {}
    names = table.get("clients", [])
    if not names:
        return []
    share = is_share(run.read(SUMMARY).get("metric", "accuracy"))
    who = "site" if run.settings().data == REMOTE_DATA else "client"
    lines = ["", f"### By {who}", "", f"| {who} | test samples | shared model | own model |", "|---|---|---|---|"]
    for i, name in enumerate(names[:MOST_CLIENTS]):
        cells = []
        for key in ("client", "personal"):
            ends = {end: table.get(f"{key}_{end}", [None] * len(names))[i] for end in ("low", "high")}
            cells.append(f"{figure(table[key][i], share)} {interval(ends, share)}".strip())
        lines.append(f"| {name} | {table['test_samples'][i]:,} | {' | '.join(cells)} |")
    if len(names) > MOST_CLIENTS:
        lines.append(f"| ... | | | {len(names) - MOST_CLIENTS:,} more in {CLIENT_SCORES} |")
    return lines


def limits(summary: Mapping[str, Any], predictor: Predictor) -> list[str]:
    """What a user must know."""
    found = [
        KNOWS[predictor.schema.task],
        "The scores hold for data like the training data. At another site, or with other devices, measure again.",
        "The intervals reflect the number of test samples, not differences between sites.",
    ]
    majority = next((table.get("majority") for table in summary.get("measures", {}).values()), None)
    if majority is not None and majority["share"] > 0.5:
        found.append(
            f"{percent(majority['share'])} of the test samples are {majority['class']!r}: always predicting that "
            "class would have this accuracy."
        )
    if predictor.columns is not None:
        found.append("A text that was not in the training data counts as no category, a missing number as the mean.")
    return [
        *found,
        "This is not a medical device. Only its makers have tested it: *add what was tested, and by whom*",
    ]
