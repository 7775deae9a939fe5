"""The papers' tables and figures as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from fedframe.cli.app import app, interruptible
from fedframe.cli.options import part_settings


@app.command()
def paper(
    table: Annotated[
        Optional[str],
        typer.Argument(
            help="table or figure, such as fedrane-1 or fedrane-fig5, or a file of your own; none: list them"
        ),
    ] = None,
    scale: Annotated[float, typer.Option(help="share of the paper's work, by fewer rounds and fewer samples")] = 1.0,
    seeds: Annotated[int, typer.Option(help="runs per cell, with the seeds 0, 1, ...")] = 1,
    rows: Annotated[str, typer.Option(help="only these, separated by commas; * stands for anything")] = "",
    columns: Annotated[str, typer.Option(help="only these, separated by commas; * stands for anything")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print a summary of what would be run, run nothing")
    ] = False,
    cells: Annotated[bool, typer.Option("--cells", help="with --dry-run: print every cell with its settings")] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="first choose each row's learning rate on held-out training data")
    ] = False,
    set_: Annotated[
        Optional[list[str]], typer.Option("--set", help="setting of a part, for the rows that have it")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1")] = "cpu",
    data_dir: Annotated[Optional[str], typer.Option(help="folder of the public data sets (or FEDFRAME_DATA)")] = None,
    cores: Annotated[Optional[int], typer.Option(min=1, help="processor cores to use (default: all)")] = None,
    out: Annotated[Path, typer.Option(help="folder of all tables and figures and their runs")] = Path("runs", "papers"),
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Run a table of a paper beside its printed numbers, or draw a figure: fedframe paper fedrane-1 --scale 0.05."""
    parts = part_settings(set_ or [])
    with interruptible():
        from fedframe.experiments.grid.failures import refuse_failures
        from fedframe.experiments.papers.cells import Choice
        from fedframe.experiments.papers.planned import print_plan
        from fedframe.experiments.papers.run import fill_or_draw, print_tables
        from fedframe.experiments.papers.scale import Scale

        if table is None:
            print_tables()
            return
        names = [[name for name in text.split(",") if name.strip()] for text in (rows, columns)]
        machine = {"device": device, "data_dir": data_dir}
        choice = Choice(Scale(scale), seeds, names[0], names[1], parts, machine, out, tune)
        if dry_run or cells:
            print_plan(table, choice, every_cell=cells)
        else:
            outcomes = fill_or_draw(table, choice, cores=cores, progress=not quiet).outcomes.values()
            refuse_failures([outcome for outcome in outcomes if outcome.state == "failed"], len(outcomes))
