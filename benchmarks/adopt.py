"""Take finished scenes into the documentation: `python -m benchmarks.adopt runs/bench/huang/huang.json ...`.

Copies each result to docs/results/bench without the folders of the machine that it was made on, writes its page from
it, and then all pages that say what it shows (`benchmarks.pages`).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from benchmarks.pages import DOCS, page_texts
from fedframe.experiments.bench.page import make_page
from fedframe.experiments.tables import markdown
from fedframe.util.files import read_json, write_json, write_text

GONE = re.compile(r" --(?:cores|cells|runs|device) \S+| --quiet")
DATA = re.compile(r"--data-dir[ =](\S+)")


def tidy(record: dict[str, Any], target: str = "docs/results/bench") -> dict[str, Any]:
    """A result in which commands are those that anybody would type, and no folder of a machine is named."""
    found = DATA.search(record["command"])
    folder = found[1].rstrip("/") if found else None

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        if isinstance(value, list):
            return [clean(each) for each in value]
        if not isinstance(value, str):
            return value
        if value.startswith("fedframe bench "):
            value = re.sub(r"--out[ =]\S+", f"--out {target}", GONE.sub("", DATA.sub("--data-dir data/", value)))
        return value.replace(folder, "data") if folder and folder.startswith("/") else value

    cleaned: dict[str, Any] = clean(record)
    for result in cleaned["results"].values():
        for method in result["methods"]:
            method["runs"] = ["runs/" + f"/{run}".rpartition("/runs/")[2] for run in method["runs"]]
    return cleaned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", metavar="SCENE.json")
    for path in parser.parse_args().results:
        record = tidy(read_json(path))
        place = DOCS / "results" / "bench" / f"{record['scene']}.json"
        write_json(place, record)
        write_text(place.with_suffix(".md"), markdown(make_page(record)).rstrip() + "\n")
        print(f"{place.name}, {place.with_suffix('.md').name}")
    for page, text in page_texts():
        page.write_text(text)


if __name__ == "__main__":
    main()
