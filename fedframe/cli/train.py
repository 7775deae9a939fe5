"""Commands that train: run, resume, personalise, join, forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fedframe.cli.app import app, interruptible
from fedframe.cli.options import (
    ChangedCode,
    part_settings,
    with_settings,
    with_table_options,
)


@app.command("run")
@with_table_options()
@with_settings
def run_command(
    method: Annotated[
        Optional[str], typer.Argument(help="method, or methods and parts joined with +", show_default=False)
    ] = None,
    config: Annotated[Optional[Path], typer.Option(help="YAML file of settings")] = None,
    out: Annotated[Optional[Path], typer.Option(help="run folder (default: a new one under runs/)")] = None,
    set_: Annotated[
        Optional[list[str]], typer.Option("--set", help="setting of a part: --set fine_tune.epochs=3")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
    **settings: Any,
) -> None:
    """Train a method: fedframe run fedavg --data digits --rounds 20."""
    parts = part_settings(set_ or [])
    with interruptible():
        from fedframe.api import NotGiven, run

        run(
            NotGiven.NOT_GIVEN if method is None else method,
            config=config,
            out=out,
            progress=not quiet,
            set=parts,
            **settings,
        )


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    changed_code: Annotated[
        bool, typer.Option("--changed-code", help="go on although a file of your own has changed since")
    ] = False,
    from_round: Annotated[
        Optional[int], typer.Option(min=0, help="go back to this round: one of the last two, or 0 (damaged files)")
    ] = None,
    without_private_state: Annotated[
        bool,
        typer.Option("--without-private-state", help="clients whose private state is damaged or missing start afresh"),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Continue a run that was stopped: the result is the same as without the stop."""
    with interruptible():
        from fedframe.api import resume as resume_run
        from fedframe.runs.federated import is_nodes
        from fedframe.runs.folder import RunFolder

        if RunFolder.open(folder).finished and from_round is None and not is_nodes(folder):
            typer.echo(f"{folder} is finished; its scores are in {folder / 'summary.json'}.")
            return
        resume_run(
            folder,
            changed_code=changed_code,
            from_round=from_round,
            without_private_state=without_private_state,
            progress=not quiet,
        )


@app.command()
def personalise(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    data: Annotated[str, typer.Option(help="the client's own data, see 'fedframe list'")],
    name: Annotated[Optional[str], typer.Option(help="what the client is called (default: after the data)")] = None,
    test_share: Annotated[
        Optional[float], typer.Option(help="share of the data held out for testing (default: the run's local_test)")
    ] = None,
    set_: Annotated[
        Optional[list[str]], typer.Option("--set", help="setting of the client stage: --set fine_tune.epochs=10")
    ] = None,
    seed: Annotated[
        Optional[int], typer.Option(help="fixes the held-out share and the batches (default: the run's)")
    ] = None,
    label: Annotated[Optional[str], typer.Option(help="label column of tabular data (default: the run's)")] = None,
    data_dir: Annotated[Optional[str], typer.Option(help="folder of the public data sets")] = None,
    device: Annotated[Optional[str], typer.Option(help="cpu, cuda or cuda:1 (default: the run's)")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a personal model of that name")] = False,
    changed_code: ChangedCode = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Make a personal model for a client that was not in the training, score it and keep it in the run folder."""
    parts = part_settings(set_ or [])
    with interruptible():
        from fedframe.runs.personalise import personalise as make_personal

        make_personal(
            folder,
            data,
            name=name,
            test_share=test_share,
            set=parts,
            seed=seed,
            label=label,
            data_dir=data_dir,
            device=device,
            overwrite=overwrite,
            changed_code=changed_code,
            progress=not quiet,
        )


@app.command()
def join(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    data: Annotated[str, typer.Option(help="the client's own data, see 'fedframe list'")],
    name: Annotated[str, typer.Option(help="what the client is called")],
    test_share: Annotated[
        Optional[float], typer.Option(help="share of the data held out for testing (default: the run's local_test)")
    ] = None,
    label: Annotated[Optional[str], typer.Option(help="label column of tabular data (default: the run's)")] = None,
    changed_code: ChangedCode = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Add a client to a finished run whose model is fitted from sums (a node's is 'federation join')."""
    with interruptible():
        from fedframe.runs.join_forget import join as join_run

        join_run(
            folder,
            data,
            name=name,
            test_share=test_share,
            label=label,
            changed_code=changed_code,
            progress=not quiet,
        )


@app.command()
def forget(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    client: Annotated[str, typer.Option(help="name or number of the client")],
    changed_code: ChangedCode = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Remove a client from a finished run whose model is fitted from sums, as if it had never been there."""
    with interruptible():
        from fedframe.runs.join_forget import forget as forget_client

        forget_client(folder, client, changed_code=changed_code, progress=not quiet)
