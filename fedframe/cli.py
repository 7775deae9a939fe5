"""The command line. Heavy modules are imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fedframe import __version__
from fedframe.errors import FedframeError, SettingError
from fedframe.settings import PANELS, Settings

app = typer.Typer(
    name="fedframe",
    help="Federated learning on data that disagree: one strong shared model, one strong personal model per client.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run a command; an error of ours is one sentence, not a traceback."""
    try:
        app()
    except FedframeError as error:
        if os.environ.get("FEDFRAME_DEBUG"):
            raise
        # The last note says how to go on; those before it may hold a worker's traceback.
        text = "\n".join([str(error), *getattr(error, "__notes__", [])[-1:]])
        typer.secho(text, fg=typer.colors.RED, err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"fedframe {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before a command."""


def setting_options() -> list[inspect.Parameter]:
    """Every setting as an option: the command line, the YAML file and Python know the same names."""
    parameters = []
    for panel, names in PANELS.items():
        for name in names:
            field = Settings.model_fields[name]
            default = "" if field.default is None else f" [dim]\\[{field.default}][/dim]"
            flag = "--" + name.replace("_", "-")
            kind: Any = Optional[bool] if field.annotation is bool else Optional[str]
            names_of_option = [f"{flag}/--no-{flag[2:]}"] if field.annotation is bool else [flag]
            option = typer.Option(
                *names_of_option,
                help=f"{field.description}{default}",
                rich_help_panel=panel,
                show_default=False,
                metavar=None if field.annotation is bool else "",
            )
            annotation = Annotated[kind, option]
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
    return parameters


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes **settings an option for each of them."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*own, *setting_options()]

    @functools.wraps(command)
    def run_command(**given: Any) -> None:
        command(**{name: value for name, value in given.items() if value is not None})

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    return run_command


def part_settings(assignments: list[str]) -> dict[str, dict[str, Any]]:
    """`fine_tune.epochs=3` as {"fine_tune": {"epochs": 3}}."""
    import yaml

    chosen: dict[str, dict[str, Any]] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        part, dot, key = name.strip().partition(".")
        if not (equals and dot and part and key):
            raise SettingError(
                f"--set {text!r} cannot be read; write it as part.setting=value: --set fine_tune.epochs=3"
            )
        try:
            chosen.setdefault(part, {})[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SettingError(f"--set {text!r} cannot be read: {value!r} is no value; try {name}=3") from None
    return chosen


@app.command("run")
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
        from fedframe.api import run

        run(method, config=config, out=out, progress=not quiet, set=parts, **settings)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Go on with a run that was stopped: the result is the same as without the stop."""
    with interruptible():
        from fedframe.api import resume as resume_run
        from fedframe.folder import RunFolder

        if RunFolder.open(folder).finished:
            typer.echo(f"{folder} is finished; its scores are in {folder / 'summary.json'}.")
            return
        resume_run(folder, progress=not quiet)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """End quietly on Ctrl-C or a polite kill: finished rounds are on disk."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as stop:
        kept = getattr(stop, "__notes__", ["Nothing was trained yet."])
        typer.secho("\n".join(["", "Stopped.", *kept]), fg=typer.colors.YELLOW, err=True)
        sys.exit(130)


@app.command("list")
def list_command() -> None:
    """List methods, parts, data sources, partitions and nets."""
    from fedframe.report.listing import print_lists

    print_lists()


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="method, part, or a combination such as fedavg+fine_tune")],
) -> None:
    """Show what a method is made of: parts, settings, paper."""
    from fedframe.report.listing import print_method

    print_method(name)


@app.command()
def data(
    source: Annotated[str, typer.Argument(help="data source, see 'fedframe list'")],
    partition: Annotated[str, typer.Option(help="how samples are dealt to clients")] = "auto",
    clients: Annotated[Optional[int], typer.Option(help="number of clients")] = None,
    seed: Annotated[int, typer.Option(help="fixes the split")] = 0,
    data_dir: Annotated[Optional[str], typer.Option(help="folder of the public data sets")] = None,
    label: Annotated[Optional[str], typer.Option(help="label column of tabular data")] = None,
    client_column: Annotated[Optional[str], typer.Option(help="client column of tabular data")] = None,
    min_client_size: Annotated[int, typer.Option(help="fewest samples a client may hold")] = 10,
    test_share: Annotated[float, typer.Option(help="test share of sources that have no test set")] = 0.2,
    validate_share: Annotated[float, typer.Option(help="test on this share of the training data instead")] = 0.0,
    data_share: Annotated[float, typer.Option(help="share of the training samples that is kept")] = 1.0,
    local_test: Annotated[str, typer.Option(help="held-out share of each client, or global")] = "0.25",
    picture: Annotated[Optional[Path], typer.Option(help="where the picture goes")] = None,
) -> None:
    """Load data, deal it out to clients, show who has what, and save a picture."""
    from fedframe.report.partition import show_partition

    given = {
        "data": source,
        "partition": partition,
        "clients": clients,
        "seed": seed,
        "data_dir": data_dir,
        "label": label,
        "client_column": client_column,
        "min_client_size": min_client_size,
        "local_test": local_test,
        "test_share": test_share,
        "validate_share": validate_share,
        "data_share": data_share,
    }
    target = svg_path(picture) if picture is not None else None
    show_partition({name: value for name, value in given.items() if value is not None}, target)


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    inputs: Annotated[Path, typer.Argument(help="image, folder of images, .npz, .npy, .csv or .parquet")],
    client: Annotated[Optional[str], typer.Option(help="use this client's own model (name or number)")] = None,
    top: Annotated[int, typer.Option(min=1, help="how many classes to print per input")] = 1,
) -> None:
    """Predict with a trained model: a line per input with class and probability."""
    from fedframe.predicting import predict_file

    for line in predict_file(folder, inputs, client, top):
        typer.echo(line)


@app.command()
def personalise(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    data: Annotated[str, typer.Option(help="the client's own data, see 'fedframe list'")],
    name: Annotated[Optional[str], typer.Option(help="what the client is called (default: after the data)")] = None,
    test_share: Annotated[
        Optional[float], typer.Option(help="held-out share of the data that scores (default: the run's local_test)")
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
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Make a personal model for a client that was not in the training, score it and keep it in the run folder."""
    parts = part_settings(set_ or [])
    with interruptible():
        from fedframe.personalising import personalise as make_personal

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
            progress=not quiet,
        )


@app.command()
def paper(
    table: Annotated[
        Optional[str], typer.Argument(help="table, such as fedrane-1, or a file of your own; none: list them")
    ] = None,
    scale: Annotated[float, typer.Option(help="share of the paper's work, by fewer rounds and fewer samples")] = 1.0,
    seeds: Annotated[int, typer.Option(help="runs per cell, with the seeds 0, 1, ...")] = 1,
    rows: Annotated[str, typer.Option(help="only these, separated by commas; * stands for anything")] = "",
    columns: Annotated[str, typer.Option(help="only these, separated by commas; * stands for anything")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the cells and their settings, run nothing")] = False,
    set_: Annotated[
        Optional[list[str]], typer.Option("--set", help="setting of a part, for the rows that have it")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1")] = "cpu",
    data_dir: Annotated[Optional[str], typer.Option(help="folder of the public data sets (or FEDFRAME_DATA)")] = None,
    cores: Annotated[Optional[int], typer.Option(min=1, help="processor cores to use (default: all)")] = None,
    out: Annotated[Path, typer.Option(help="folder of all tables and their runs")] = Path("runs", "papers"),
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Run a table of a paper and print our numbers beside the paper's: fedframe paper fedrane-1 --scale 0.05."""
    parts = part_settings(set_ or [])
    with interruptible():
        from fedframe.papers.cells import Choice
        from fedframe.papers.running import describe, fill, print_tables
        from fedframe.papers.scale import Scale

        if table is None:
            print_tables()
            return
        names = [[name for name in text.split(",") if name.strip()] for text in (rows, columns)]
        machine = {"device": device, "data_dir": data_dir}
        choice = Choice(Scale(scale), seeds, names[0], names[1], parts, machine, out)
        if dry_run:
            describe(table, choice)
        else:
            fill(table, choice, cores=cores, progress=not quiet)


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(help="run folder, or several to compare")],
    out: Annotated[Optional[Path], typer.Option(help="picture to write (.svg)")] = None,
) -> None:
    """Draw accuracy over rounds as an SVG picture, by default in the first run's folder."""
    from fedframe.core.files import write_text
    from fedframe.report.curves import run_curves

    target = svg_path(out or folders[0] / "curves.svg")
    write_text(target, run_curves(folders))
    typer.echo(f"Picture: {target}")


def svg_path(path: Path) -> Path:
    """Refuse to write SVG under another name."""
    if path.suffix.lower() != ".svg":
        raise SettingError(f"Pictures are SVG: name it {path.with_suffix('.svg')}.")
    return path
