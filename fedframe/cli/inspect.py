"""Commands that show: list, show, data, predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from fedframe.cli.app import app
from fedframe.cli.options import (
    Categorical,
    ChangedCode,
    Date,
    Decimal,
    Encoding,
    Missing,
    Numeric,
    with_table_options,
)


@app.command("list")
def list_command(
    kind: Annotated[Optional[str], typer.Argument(help="only methods, parts, data, partitions or nets")] = None,
) -> None:
    """List methods, parts, data sources, partitions and nets, or one of these."""
    from fedframe.cli.listing import print_lists

    print_lists(kind)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="method, part, or a combination such as fedavg+fine_tune")],
) -> None:
    """Show what a method is made of: parts, settings, paper."""
    from fedframe.cli.listing import print_method

    print_method(name)


@app.command()
@with_table_options("source", "csv:PATH")
def data(
    source: Annotated[str, typer.Argument(help="data source, see 'fedframe list'")],
    partition: Annotated[str, typer.Option(help="how samples are distributed to clients")] = "auto",
    clients: Annotated[Optional[int], typer.Option(help="number of clients")] = None,
    seed: Annotated[int, typer.Option(help="fixes the split")] = 0,
    data_dir: Annotated[Optional[str], typer.Option(help="folder of the public data sets")] = None,
    label: Annotated[Optional[str], typer.Option(help="label column of tabular data")] = None,
    client_column: Annotated[Optional[str], typer.Option(help="client column of tabular data")] = None,
    task: Annotated[str, typer.Option(help="classification, regression or multilabel")] = "auto",
    min_client_size: Annotated[int, typer.Option(help="fewest samples a client may hold")] = 10,
    test_share: Annotated[float, typer.Option(help="test share of sources that have no test set")] = 0.2,
    validate_share: Annotated[float, typer.Option(help="score on this share of the training data")] = 0.0,
    data_share: Annotated[float, typer.Option(help="share of the training samples that is kept")] = 1.0,
    local_test: Annotated[str, typer.Option(help="held-out share of each client, or global")] = "0.25",
    picture: Annotated[Optional[Path], typer.Option(help="where the picture goes: .svg, .png or .pdf")] = None,
) -> None:
    """Load data, show a table's columns, distribute it to clients, show who has what, and save a picture."""
    from fedframe.report.partition import show_columns, show_partition

    show_columns(source, label, client_column, task)
    given = {
        "data": source,
        "partition": partition,
        "clients": clients,
        "seed": seed,
        "data_dir": data_dir,
        "label": label,
        "client_column": client_column,
        "task": task,
        "min_client_size": min_client_size,
        "local_test": local_test,
        "test_share": test_share,
        "validate_share": validate_share,
        "data_share": data_share,
    }
    show_partition({name: value for name, value in given.items() if value is not None}, picture)


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    inputs: Annotated[Path, typer.Argument(help="image, folder of images, .npz, .npy, .csv or .parquet")],
    client: Annotated[Optional[str], typer.Option(help="use this client's own model (name or number)")] = None,
    top: Annotated[int, typer.Option(min=1, help="how many classes to print per input")] = 1,
    numeric: Numeric = None,
    categorical: Categorical = None,
    date: Date = None,
    missing: Missing = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    changed_code: ChangedCode = False,
) -> None:
    """Predict with a trained model: a line per input with class and probability."""
    from fedframe.runs.predictor import predict_file

    asked = {"numeric": numeric, "categorical": categorical, "date": date, "missing": missing}
    asked |= {"encoding": encoding, "decimal": decimal}
    table = {name: value for name, value in asked.items() if value is not None}
    for line in predict_file(folder, inputs, client, top, changed_code, table):
        typer.echo(line)
