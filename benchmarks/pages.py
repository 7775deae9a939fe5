"""Put measured results into the documentation: `python -m benchmarks.pages`.

Reads the tables in docs/results/*.json (made by `benchmarks.tables`) and fills what stands between
`<!-- result: NAME -->` and `<!-- end of result -->` in docs/methods/*.md, and between `<!-- table: NAME -->` and
`<!-- end of table -->` in docs/results/README.md. A method without a result says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.tables import markdown, spread

ROOT = Path(__file__).parent.parent / "docs"
TITLES = {
    "digits-10-rounds": "`digits`, 10 rounds",
    "digits-30-rounds": "`digits`, 30 rounds",
    "fashion-mnist-30-rounds": "Fashion-MNIST, 30 rounds",
    "fashion-mnist-20-rounds": "Fashion-MNIST, 20 rounds",
    "fashion-mnist-longtail": "Fashion-MNIST, `longtail:100+dirichlet:0.5`, 30 rounds",
}
BLOCK = re.compile(r"<!-- result: (\w+) -->(?:.*?<!-- end of result -->)?", re.DOTALL)
COMMON = (
    "All with `--partition dirichlet:0.1` (unless said), `--clients 20 --epochs 5 --momentum 0.9`, `--batch 32` on\n"
    "`digits` and `--batch 128 --model convnet` on Fashion-MNIST; the rest is the method's default. Protocol and\n"
    "all methods: [results](../results/README.md)."
)
TABLE = re.compile(r"<!-- table: ([\w-]+) -->(?:.*?<!-- end of table -->)?", re.DOTALL)
HEAD = ["| on | settings | generic, last five | generic, final | personal |", "|---|---|---|---|---|"]


def read_tables() -> dict[str, dict[str, Mapping[str, Any]]]:
    """The rows of every table, by table and method."""
    found = {}
    for name in TITLES:
        path = ROOT / "results" / f"{name}.json"
        if path.exists():
            found[name] = {row["method"]: row for row in json.loads(path.read_text())}
    return found


def result_of(method: str, tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """A method's results beside FedAvg's."""
    lines = []
    for name, rows in tables.items():
        if method in rows:
            beside = "fedavg, net with BatchNorm" if method == "fedbn" else "fedavg"
            for who in dict.fromkeys((method, beside)):
                row = rows[who]
                title = TITLES[name] if who == method else "the same, `fedavg`"
                scores = " | ".join(spread(row[key]) for key in ("generic", "generic_final", "personal"))
                lines.append(f"| {title} | `{row['settings']}` | {scores} |")
    if not lines:
        return ["Not measured on a larger data set yet; the tests show that it learns."]
    return [*HEAD, *lines, "", COMMON]


def fill(text: str, tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The page with its results."""

    def block(match: re.Match[str]) -> str:
        lines = result_of(match[1], tables)
        return "\n".join([f"<!-- result: {match[1]} -->", "", *lines, "", "<!-- end of result -->"])

    return BLOCK.sub(block, text)


def fill_tables(text: str, tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The page of results with its tables."""

    def block(match: re.Match[str]) -> str:
        rows = markdown([dict(row) for row in tables[match[1]].values()])
        return f"<!-- table: {match[1]} -->\n\n{rows}\n<!-- end of table -->"

    return TABLE.sub(block, text)


if __name__ == "__main__":
    known = read_tables()
    for page in sorted((ROOT / "methods").glob("*.md")):
        if page.name != "README.md":
            page.write_text(fill(page.read_text(), known))
    results = ROOT / "results" / "README.md"
    results.write_text(fill_tables(results.read_text(), known))
