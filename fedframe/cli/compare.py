"""Methods side by side as a command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fedframe.cli.app import app, interruptible
from fedframe.cli.options import part_settings, with_settings


@app.command("compare")
@with_settings
def compare_command(
    methods: Annotated[
        Optional[list[str]],
        typer.Argument(help="methods; with settings of their own: 'fedprox?lr=0.1&prox.mu=0.01'", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="runs per method, with the seeds --seed, --seed + 1, ...")] = 3,
    baseline: Annotated[Optional[str], typer.Option(help="method to compare with (default: the first)")] = None,
    target: Annotated[
        Optional[float], typer.Option(help="accuracy that rounds and seconds are counted to (default: the baseline's)")
    ] = None,
    sweep: Annotated[
        Optional[list[str]],
        typer.Option(
            help="candidates, chosen on validation data: lr=0.01,0.1; or cases, each with a table: alpha=0.1,0.5"
        ),
    ] = None,
    select: Annotated[
        str, typer.Option(help="score that candidates are chosen by, such as generic.last_five or personal.final")
    ] = "",
    tuning_seeds: Annotated[
        Optional[int], typer.Option(help="seeds that candidates are run with (default: all)")
    ] = None,
    config: Annotated[Optional[Path], typer.Option(help="YAML file of settings, methods and sweep")] = None,
    out: Annotated[Optional[Path], typer.Option(help="folder of runs and tables (default: one under runs/)")] = None,
    set_: Annotated[
        Optional[list[str]], typer.Option("--set", help="setting of a part, for the methods that have it")
    ] = None,
    cores: Annotated[Optional[int], typer.Option(min=1, help="processor cores to use (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
    **settings: Any,
) -> None:
    """Run methods by seeds on the same clients and print a table: fedframe compare fedavg fedetf --seeds 5."""
    parts = part_settings(set_ or [])
    with interruptible():
        from fedframe.experiments.compare.rows import read_sweep
        from fedframe.experiments.compare.run import compare_each
        from fedframe.experiments.grid.failures import refuse_failures

        found = compare_each(
            methods or [],
            seeds=seeds,
            baseline=baseline,
            target=target,
            sweep=dict(map(read_sweep, sweep or [])),
            select=select,
            tuning_seeds=tuning_seeds,
            out=out,
            config=config,
            cores=cores,
            progress=not quiet,
            command=shlex.join(["fedframe", *sys.argv[1:]]),
            set=parts,
            **settings,
        )
        done = [outcome for each in found.values() for outcome in each.all_outcomes]
        refuse_failures([outcome for outcome in done if outcome.state == "failed"], len(done))
