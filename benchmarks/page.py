"""How long a page of 1,000 clients takes to open and how large it is: python -m benchmarks.page

Made runs stand in for trained ones: a page is the same whatever the numbers in it. It can be read when what is on the
screen is drawn; the other figures follow, and the limit is for the last of them. The machine may be busy with other
things, so CPU time stands beside the time that passes: what all processes of the browser work until then (about what
would pass on one free core), and its main thread's part.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from fedframe.report.page.build import make_page
from fedframe.report.page.runs import open_runs
from tests.report.made import made_comparison, made_run

SIZE_LIMIT, TIME_LIMIT = 6.0, 3.0  # megabytes, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=500)
    given = parser.parse_args()
    more = {"clients": given.clients, "classes": given.classes, "rounds": given.rounds, "samples": 2000}
    with tempfile.TemporaryDirectory() as place:
        folders = {
            "one run": made_run(Path(place, "run"), **more),
            "4 methods x 3 seeds": made_comparison(
                Path(place, "all"), ("fedavg", "fedprox", "fedetf", "fedrane"), 3, **{**more, "classes": 10}
            ),
        }
        print(
            "| page | made in | megabytes | to be read after | all drawn after | CPU until then | in the main thread |"
        )
        print("|---|---|---|---|---|---|---|")
        for name, folder in folders.items():
            began = time.perf_counter()
            html = make_page(open_runs([folder]))
            made = time.perf_counter() - began
            path = Path(place, "page.html")
            path.write_text(html, "utf-8")
            wall, seen, everything, context = opened(path)
            size = path.stat().st_size / 1e6
            limits = f"{size:.2f} (limit {SIZE_LIMIT:g}) | {seen:.2f} s | {wall:.2f} s (limit {TIME_LIMIT:g})"
            print(f"| {name} | {made:.1f} s | {limits} | {everything:.2f} s | {context:.2f} s |")


def opened(path: Path) -> tuple[float, float, float, float]:
    """Seconds until all and what can be seen is drawn in a fresh tab; work of all processes and of the main thread.

    The best of three.
    """
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    times = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(3):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            watch = page.context.new_cdp_session(page)
            watch.send("Performance.enable", {"timeDomain": "threadTicks"})
            before = cpu_of_children()
            began = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
            seen = time.perf_counter() - began
            page.wait_for_selector("html[data-drawn=all]", state="attached", timeout=120_000)
            wall = time.perf_counter() - began
            everything = cpu_of_children() - before
            found = {each["name"]: each["value"] for each in watch.send("Performance.getMetrics")["metrics"]}
            times.append((wall, seen, everything, float(found["TaskDuration"])))
            page.close()
        browser.close()
    return min(times)


def cpu_of_children() -> float:
    """CPU seconds so far of all processes below this one (Linux)."""
    ticks: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in ticks.items() if parent in family and pid not in family}:
        family |= more
    return sum(ticks[pid][1] for pid in family - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
