"""Put measured results into the methods' pages: `python -m benchmarks.pages`.

Reads the tables in docs/results/*.json (made by `benchmarks.tables`) and fills what stands between
`<!-- result: NAME -->` and `<!-- end of result -->` in docs/methods/*.md. A method without a result says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.tables import spread

ROOT = Path(__file__).parent.parent / "docs"
TITLES = {
    "digits-10-rounds": "`digits`, 10 rounds",
    "digits-30-rounds": "`digits`, 30 rounds",
    "fashion-mnist-30-rounds": "Fashion-MNIST, 30 rounds",
    "fashion-mnist-20-rounds": "Fashion-MNIST, 20 rounds",
}
BLOCK = re.compile(r"<!-- result: (\w+) -->(?:.*?<!-- end of result -->)?", re.DOTALL)
COMMON = (
    "All with `--partition dirichlet:0.1 --clients 20 --epochs 5 --momentum 0.9`, and `--batch 32` on `digits` or\n"
    "`--batch 128 --model convnet` on Fashion-MNIST; the rest is the method's default. Protocol, commands and other\n"
    "methods: [results](../results/README.md)."
)
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
            for who in dict.fromkeys((method, "fedavg")):
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


if __name__ == "__main__":
    known = read_tables()
    for page in sorted((ROOT / "methods").glob("*.md")):
        if page.name != "README.md":
            page.write_text(fill(page.read_text(), known))
