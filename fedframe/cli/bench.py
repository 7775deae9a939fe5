"""The protocol as a command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from fedframe.cli.app import app, interruptible


@app.command("bench")
def bench_command(
    scene: Annotated[
        Optional[str], typer.Argument(help="scene, such as quick, or a YAML file of your own", show_default=False)
    ] = None,
    methods: Annotated[
        Optional[list[str]],
        typer.Argument(help="only these rows of the scene, or methods of your own: mine.py:MyPart", show_default=False),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="list the scenes and roughly how long they take")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print rows and candidates, run nothing")] = False,
    rows: Annotated[str, typer.Option(help="only these rows, separated by ;  * stands for anything")] = "",
    cases: Annotated[str, typer.Option(help="only these cases, separated by ;  * stands for anything")] = "",
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="run the controls, too; the baseline is always run")
    ] = True,
    page: Annotated[Optional[Path], typer.Option(help="only write the page of this result (JSON)")] = None,
    runs: Annotated[Path, typer.Option(help="folder of all scenes' runs")] = Path("runs", "bench"),
    out: Annotated[
        Optional[Path], typer.Option(help="folder of SCENE.json and SCENE.md (default: beside the runs)")
    ] = None,
    cells: Annotated[
        Optional[Path], typer.Option(help="file of finished runs to reuse and to extend: SCENE.cells.zip")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1")] = "cpu",
    data_dir: Annotated[Optional[str], typer.Option(help="folder of the public data sets (or FEDFRAME_DATA)")] = None,
    cores: Annotated[Optional[int], typer.Option(min=1, help="processor cores to use (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Run a scene by the protocol: equal schedule, budget, controls and statistics: fedframe bench quick."""
    with interruptible():
        from fedframe.experiments.bench.run import Bench, bench, describe, print_scenes, write_page

        if page is not None:
            print(f"Saved: {write_page(page)}")
            return
        if scene is None or list_:
            print_scenes(runs)
            return
        patterns = [name for name in rows.split(";") if name.strip()]
        machine = {"device": device, "data_dir": data_dir}
        some = [name for name in cases.split(";") if name.strip()]
        asked = Bench(scene, methods or [], patterns, controls, runs, out, machine, some, cells)
        if dry_run:
            describe(asked)
        else:
            bench(asked, cores=cores, progress=not quiet, command=shlex.join(["fedframe", *sys.argv[1:]]))
