"""Put measured results into the documentation: `python -m benchmarks.pages`.

Fills what stands between markers:

- `<!-- result: METHOD -->` in docs/methods/*.md: the method's rows in docs/results/bench/*.json (made by `fedframe
  bench`), and under them those of the older tables (docs/results/older/*.json, made by `benchmarks.tables`);
- `<!-- verdicts: SCENE -->` in docs/results/README.md: what a scene says about the papers' claims
  (`benchmarks.verdicts`);
- `<!-- comparison: NAME -->` there: docs/results/NAME.json (made by `fedframe compare`);
- `<!-- table: NAME -->` in docs/results/older.md.

`python -m benchmarks.adopt SCENE.json` takes a new scene over and does all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.tables import TITLES, markdown, spread
from benchmarks.verdicts import BASELINE, Json, points, read_claims, read_records, section
from fedframe.experiments.compare.tables import interval, number
from fedframe.experiments.tables import DASH
from fedframe.metrics.statistics import Difference

DOCS = Path(__file__).parent.parent / "docs"
OLDER = DOCS / "results" / "older"
SCORES = ("generic.final", "generic.last_five", "personal.final")
HEAD = (
    "| scene | row | chosen | generic | generic, last five | personal | generic, to FedAvg | personal, to FedAvg |",
    "|---|---|---|---|---|---|---|---|",
)
OLDER_HEAD = ("| on | settings | generic, last five | generic, final | personal |", "|---|---|---|---|---|")
OLDER_TEXT = (
    "From before the protocol, without controls, at one schedule for all rows ([older tables](../results/older.md));\n"
    "`--partition dirichlet:0.1` (unless said), `--clients 20 --epochs 5 --momentum 0.9`, `--batch 32` on `digits`\n"
    "and `--batch 128 --model convnet` on Fashion-MNIST:"
)
NONE_YET = "No scene of the bench has it yet"
NO_SCENE = {"fedbn": f"{NONE_YET}: it needs a net with BatchNorm, and inputs that look different."}
BENCH_TEXT = (
    "Percent, mean and 95 % interval over seeds; differences seed by seed. Schedule, budget and controls are the same\n"
    "for all rows of a scene; what they show is on the page of [results](../results/README.md)."
)


def block(kind: str) -> re.Pattern[str]:
    """What stands between two markers, or a first marker that was never filled."""
    return re.compile(rf"<!-- {kind}: ([\w-]+) -->(?:.*?<!-- end of {kind} -->)?", re.DOTALL)


def filled(text: str, kind: str, lines_of: Callable[[str], list[str]]) -> str:
    """The text with the lines of every marked name between its markers."""

    def lines(match: re.Match[str]) -> str:
        return "\n".join([f"<!-- {kind}: {match[1]} -->", "", *lines_of(match[1]), "", f"<!-- end of {kind} -->"])

    return block(kind).sub(lines, text)


def read_older() -> dict[str, dict[str, Json]]:
    """The rows of every older table, by table and method."""
    found = {}
    for name in TITLES:
        path = OLDER / f"{name}.json"
        if path.exists():
            found[name] = {row["method"]: row for row in json.loads(path.read_text())}
    return found


def result_of(method: str, records: Mapping[str, Json], older: Mapping[str, Mapping[str, Json]]) -> list[str]:
    """A method's results: in the scenes of the bench, and in older tables."""
    lines = [*bench_lines(method, records)]
    found = (
        [*HEAD, *lines, "", BENCH_TEXT]
        if lines
        else [NO_SCENE.get(method, f"{NONE_YET}: `fedframe bench quick {method}`.")]
    )
    before = [*older_lines(method, older)]
    return [*found, "", OLDER_TEXT, "", *OLDER_HEAD, *before] if before else found


def bench_lines(method: str, records: Mapping[str, Json]) -> Iterator[str]:
    """The rows of a method in the scenes, under the baseline's."""
    for scene, record in records.items():
        labels = [row["label"] for row in record["rows"] if row["method"] == method and not row["settings"]]
        if not labels:
            continue
        for case, result in record["results"].items():
            place = f"[{scene}](../results/bench/{scene}.md){f', {case}' if case else ''}"
            for each in result["methods"]:
                if each["label"] in dict.fromkeys((BASELINE, *labels)):
                    yield bench_line(place, each)


def bench_line(place: str, method: Json) -> str:
    """A row of a scene."""
    chosen = " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in (method["chosen"] or {}).items()
    )
    scores = [estimate(method["scores"].get(score), score) for score in SCORES]
    differences = [difference(method["difference"].get(score)) for score in ("generic.final", "personal.final")]
    return f"| {place} | `{method['label']}` | {chosen or DASH} | {' | '.join((*scores, *differences))} |"


def estimate(found: Json | None, score: str) -> str:
    """A mean with its interval."""
    if not found or found["mean"] is None:
        return DASH
    bounds = f" {interval(found['low'], found['high'], score)}" if found["low"] is not None else ""
    return f"{number(found['mean'], score)}{bounds}"


def difference(found: Json | None) -> str:
    """A difference to the baseline."""
    if not found or found["mean"] is None:
        return DASH
    return points(Difference(found["pairs"], found["mean"], found["low"], found["high"]))


def comparison_lines(name: str) -> list[str]:
    """A comparison's shared models, and its command."""
    found = json.loads((DOCS / "results" / f"{name}.json").read_text())
    command = found["command"].replace(" --data ", " \\\n    --data ")
    lines = ["```sh", command, "```", "", "| row | generic | generic, last five | last five, to the first row |"]
    lines.append("|---|---|---|---|")
    for method in found["methods"]:
        scores = [estimate(method["scores"][score], score) for score in SCORES[:2]]
        gain = difference(method["difference"].get("generic.last_five"))
        lines.append(f"| `{method['label']}` | {' | '.join(scores)} | {gain} |")
    return lines


def older_lines(method: str, older: Mapping[str, Mapping[str, Json]]) -> Iterator[str]:
    """The rows of a method in the older tables, beside FedAvg's."""
    for name, rows in older.items():
        if method in rows:
            beside = "fedavg, net with BatchNorm" if method == "fedbn" else BASELINE
            for who in dict.fromkeys((method, beside)):
                row = rows[who]
                title = TITLES[name] if who == method else f"the same, `{BASELINE}`"
                scores = " | ".join(spread(row[key]) for key in ("generic", "generic_final", "personal"))
                yield f"| {title} | `{row['settings']}` | {scores} |"


def page_texts() -> Iterator[tuple[Path, str]]:
    """Every page with results, as it should be."""
    records, older, claims = read_records(), read_older(), read_claims()
    for page in sorted((DOCS / "methods").glob("*.md")):
        yield page, filled(page.read_text(), "result", lambda name: result_of(name, records, older))
    results = DOCS / "results" / "README.md"
    text = filled(results.read_text(), "comparison", comparison_lines)
    yield results, filled(text, "verdicts", lambda name: section(name, claims[name], records.get(name)))
    tables = DOCS / "results" / "older.md"
    lines = {name: markdown([dict(row) for row in rows.values()]).splitlines() for name, rows in older.items()}
    yield tables, filled(tables.read_text(), "table", lambda name: lines[name])


if __name__ == "__main__":
    for path, text in page_texts():
        path.write_text(text)
