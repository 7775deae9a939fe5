"""A small comparison from start to end: what is run, computed, printed and saved."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

import fedframe
from fedframe.errors import RunError
from fedframe.experiments.compare.result import Comparison
from fedframe.experiments.compare.tables import make_document
from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.tables import latex_text, markdown_row, show
from tests.helpers import blobs

SMALL: dict[str, Any] = {"rounds": 3, "model": "mlp:8", "batch": 8, "epochs": 1}
WILD = r"wild_&%$#{}~^\<b>|[x]"  # every character that a format could trip over
METHODS: list[str | dict[str, Any]] = [
    "fedavg",
    "fedprox?prox.mu=1",
    "fedper",
    {"method": "fedavg", "lr": 1e30, "label": WILD},
]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Four methods by three seeds: one like the baseline, one without a shared model, one that diverges."""
    out = tmp_path_factory.mktemp("compare") / "out"
    return fedframe.compare(METHODS, seeds=3, data=blobs(), out=out, cores=2, progress=False, target=0.5, **SMALL)


def summaries(comparison: Comparison, label: str) -> list[dict[str, Any]]:
    """The runs' own files."""
    method = next(m for m in read(comparison)["methods"] if m["label"] == label)
    return [json.loads((comparison.plan.out / run / "summary.json").read_text()) for run in method["runs"]]


def read(comparison: Comparison) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((comparison.plan.out / "comparison.json").read_text())
    return found


@pytest.mark.slow
def test_numbers_are_those_of_the_runs(comparison: Comparison) -> None:
    for label in ("fedavg", "fedprox prox.mu=1"):
        runs = summaries(comparison, label)
        assert [run["seed"] for run in runs] == [0, 1, 2]
        values = tuple(run["scores"]["generic"]["final"] for run in runs)
        assert comparison.scores[label]["generic.final"].values == values
        assert comparison.scores[label]["bytes_up"].values == tuple(run["bytes_up_total"] for run in runs)
        assert comparison.scores[label]["cpu_seconds"].values == tuple(run["cpu_seconds"] for run in runs)


def test_difference_is_scipys_over_the_same_seeds(comparison: Comparison) -> None:
    ours, theirs = (
        [run["scores"]["generic"]["last_five"] for run in summaries(comparison, label)]
        for label in ("fedprox prox.mu=1", "fedavg")
    )
    found = comparison.differences["fedprox prox.mu=1"]["generic.last_five"]
    assert found.pairs == 3
    if len({a - b for a, b in zip(ours, theirs, strict=True)}) > 1:
        assert found.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)


def test_rounds_and_seconds_to_the_target_are_those_of_the_history(comparison: Comparison) -> None:
    method = read(comparison)["methods"][0]
    for seed, run in enumerate(method["runs"]):
        lines = [json.loads(line) for line in (comparison.plan.out / run / "metrics.jsonl").read_text().splitlines()]
        reached = [line["round"] for line in lines if line["generic"] >= 0.5]
        wanted = reached[0] if reached else None
        assert method["scores"]["rounds_to:0.5"]["values"][seed] == wanted
        if wanted is not None:
            seconds = sum(line["seconds"] for line in lines[:wanted])
            assert method["scores"]["seconds_to:0.5"]["values"][seed] == pytest.approx(seconds)


def test_method_without_a_shared_model_has_a_dash_and_a_sentence(comparison: Comparison) -> None:
    assert comparison.scores["fedper"]["generic.final"].values == (None, None, None)
    assert comparison.scores["fedper"]["personal.final"].count == 3
    assert re.search(r"\| fedper \| – \| – \| – \| \d+\.\d+ \[", comparison.table())  # noqa: RUF001
    assert "fedper has no shared model" in comparison.table()


def test_diverged_runs_are_shown_and_never_in_a_mean(comparison: Comparison) -> None:
    method = read(comparison)["methods"][3]
    assert method["states"] == ["diverged"] * 3
    assert method["scores"]["generic.final"] == {
        "values": [None] * 3,
        "mean": None,
        "low": None,
        "high": None,
        "count": 0,
    }
    assert "3 diverged" in comparison.table()
    assert "smaller lr" in comparison.table()


def test_mean_over_fewer_seeds_says_over_how_many(comparison: Comparison) -> None:
    cell = comparison.outcomes["fedavg"][1].cell
    broken = [
        comparison.outcomes["fedavg"][0],
        Outcome(cell, "diverged", "It blew up."),
        comparison.outcomes["fedavg"][2],
    ]
    found = Comparison(comparison.plan, {**comparison.outcomes, "fedavg": broken}, "c")
    assert found.scores["fedavg"]["generic.final"].count == 2
    assert "(2 of 3 seeds, 1 diverged)" in found.table()
    assert found.differences["fedprox prox.mu=1"]["generic.final"].pairs == 2
    assert "It blew up." in found.table()


def test_json_has_what_the_report_reads(comparison: Comparison) -> None:
    content = read(comparison)
    assert {"command", "baseline", "seeds", "methods", "definitions"} <= content.keys()
    assert (content["baseline"], content["seeds"]) == ("fedavg", [0, 1, 2])
    first, second = content["methods"][:2]
    assert first["difference"] == {}
    assert {"mean", "low", "high", "p", "test", "p_holm"} <= second["difference"]["generic.final"].keys()
    assert "t test" in second["difference"]["generic.final"]["test"]
    assert (second["name"], second["label"]) == ("fedprox", "fedprox prox.mu=1")
    assert content["definitions"].keys() == first["scores"].keys()
    assert all((comparison.plan.out / run / "config.yaml").exists() for run in first["runs"])


def test_csv_has_a_line_per_method_and_score(comparison: Comparison) -> None:
    with (comparison.plan.out / "comparison.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4 * len(comparison.definitions)
    found = {(line["label"], line["score"]): line for line in lines}
    assert float(found["fedavg", "generic.final"]["mean"]) == comparison.scores["fedavg"]["generic.final"].mean
    assert (found[WILD, "generic.final"]["mean"], found[WILD, "generic.final"]["diverged"]) == ("", "3")
    assert found["fedavg", "generic.final"]["p"] == ""


class Cells(HTMLParser):
    """Texts of a page's cells, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_page_shows_every_name_as_it_is_and_needs_no_network(comparison: Comparison) -> None:
    text = (comparison.plan.out / "comparison.html").read_text()
    page = Cells()
    page.feed(text)
    assert WILD in page.texts
    assert "b" not in page.tags
    assert "http" not in text
    assert "script" not in page.tags


def test_latex_has_means_with_deviations_and_the_best_in_bold(comparison: Comparison) -> None:
    text = (comparison.plan.out / "comparison.tex").read_text()
    means = {label: comparison.scores[label]["generic.final"].mean for label in comparison.labels}
    known = {label: mean for label, mean in means.items() if mean is not None}
    best = max(known, key=lambda label: known[label])
    values = comparison.scores[best]["generic.final"].known
    deviation = (sum((value - known[best]) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    assert rf"\textbf{{{100 * known[best]:.2f} \ensuremath{{\pm}} {100 * deviation:.2f}" in text
    assert "standard deviation over" in text


def test_latex_escapes_what_would_break_it(comparison: Comparison) -> None:
    text = (comparison.plan.out / "comparison.tex").read_text()
    assert latex_text(WILD) in text
    assert WILD not in "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    for line in text.splitlines():
        if line.endswith(r"\\"):
            cells = re.sub(r"\\[&%$#_{}]", "", line)
            assert not re.search(r"[%$#_^~]", cells.replace(r"\\", ""))
            assert not line.startswith("[")
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 4
    assert latex_text("a_b & 50 % \\ {x}") == r"a\_b \& 50 \% \textbackslash{} \{x\}"


def test_latex_prints_a_minus_and_no_hyphen_in_front_of_numbers() -> None:
    assert latex_text("-4.68") == r"\ensuremath{-}4.68"
    assert latex_text("[-2.39, -0.10]") == r"{[}\ensuremath{-}2.39, \ensuremath{-}0.10{]}"
    assert latex_text("resnet-8 1e-05 2–3") == "resnet-8 1e-05 2--3"  # noqa: RUF001


def test_columns_of_every_latex_line_fit_its_table(comparison: Comparison) -> None:
    width = 0
    for line in (comparison.plan.out / "comparison.tex").read_text().splitlines():
        if line.startswith(r"\begin{tabular}"):
            width = line.count("l", len(r"\begin{tabular}"))
        elif line.endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == width - 1


def test_markdown_is_what_is_printed_and_saved(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    assert (comparison.plan.out / "comparison.md").read_text() == comparison.table()
    show(make_document([comparison]))
    assert capsys.readouterr().out == comparison.table()
    assert markdown_row(("a|b", "c")) == "| a\\|b | c |"
    for line in comparison.table().splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) >= 3


def test_table_says_how_it_was_made(comparison: Comparison) -> None:
    text = comparison.table()
    assert "paired t test, two-sided" in text
    assert "normally distributed" in text
    assert "adjusted for the number of methods" in text
    assert "seeds 0, 1, 2; a seed fixes partition, splits" in text
    assert "rounds to 50 %" in text
    assert "## Settings that differ" in text


def test_saved_elsewhere_the_folders_of_the_runs_are_still_found(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path / "copy")
    content = json.loads((tmp_path / "copy" / "comparison.json").read_text())
    assert all((tmp_path / "copy" / run / "config.yaml").exists() for run in content["methods"][0]["runs"])


@pytest.mark.slow
def test_more_seeds_join_those_that_are_there(comparison: Comparison) -> None:
    kept = {
        run: (comparison.plan.out / run / "summary.json").stat().st_mtime_ns
        for run in read(comparison)["methods"][0]["runs"]
    }
    again = fedframe.compare(METHODS[:1], seeds=4, data=blobs(), out=comparison.plan.out, progress=False, **SMALL)
    assert again.scores["fedavg"]["generic.final"].count == 4
    assert all((comparison.plan.out / run / "summary.json").stat().st_mtime_ns == time for run, time in kept.items())
    comparison.save()


@pytest.mark.slow
def test_one_seed_gives_means_dashes_and_a_sentence(tmp_path: Path) -> None:
    found = fedframe.compare(["fedavg", "fedprox"], seeds=1, data=blobs(), out=tmp_path / "o", progress=False, **SMALL)
    difference = found.differences["fedprox"]["generic.final"]
    assert (difference.pairs, difference.low, difference.p, difference.p_holm) == (1, None, None, None)
    text = found.table()
    assert "One seed: intervals and p-values need two or more" in text
    assert re.search(r"\| generic \| fedprox \| [+-]\d+\.\d\d \| – \| – \| 1 \|", text)  # noqa: RUF001
    assert "Holm" not in text


@pytest.mark.slow
def test_nothing_that_could_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Not one of 2 runs could be made"):
        fedframe.compare(["fedavg"], seeds=2, data="digits", clients=5000, out=tmp_path / "o", progress=False)


@pytest.mark.slow
def test_another_comparison_in_the_same_folder_loses_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = {"data": blobs(), "out": tmp_path / "out", "seeds": 1, "cores": 1, **SMALL}
    fedframe.compare(["fedavg", "fedprox"], progress=False, **first)
    before = (tmp_path / "out" / "comparison.md").read_text()
    fedframe.compare(["fedavg", "fedprox"], progress=False, **first)
    assert not list((tmp_path / "out").glob("earlier-*"))  # the same question
    fedframe.compare(["fedavg", "fedper"], **first)
    assert (tmp_path / "out" / "earlier-1" / "comparison.md").read_text() == before
    assert "fedper" in (tmp_path / "out" / "comparison.md").read_text()
    said = capsys.readouterr().out
    assert "earlier-1; its runs stay where they are" in said
    assert f"fedframe report {tmp_path / 'out'}" in said


def test_a_comparison_shows_its_scores_and_folder_in_one_line(comparison: Comparison) -> None:
    shown = repr(comparison)
    assert shown.startswith(f"Comparison({str(comparison.plan.out)!r}, seeds=")
    assert "\n" not in shown
    assert all(repr(label) in shown for label in comparison.labels)
