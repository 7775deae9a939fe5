"""What commands have in common: settings as options, settings of parts, names of pictures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Optional

import typer

from fedframe.errors import SettingError
from fedframe.settings import PANELS, Settings

ChangedCode = Annotated[
    bool, typer.Option("--changed-code", help="use the run although a file of your own has changed since")
]


def setting_options(without: Collection[str]) -> list[inspect.Parameter]:
    """Every setting as an option: the command line, the YAML file and Python know the same names."""
    parameters = []
    for panel, names in PANELS.items():
        for name in names:
            if name in without:
                continue
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


def with_settings(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Give a command that takes **settings an option for each of them, but for some."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*own, *setting_options(without)]

    @functools.wraps(command)
    def run_command(**given: Any) -> None:
        command(**{name: value for name, value in given.items() if value is not None})

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    return run_command


Drop = Annotated[Optional[str], typer.Option(help="columns of a table to leave out (a,b)")]
Numeric = Annotated[Optional[str], typer.Option(help="columns that are numbers: <0.5 is 0.5, texts are missing")]
Categorical = Annotated[Optional[str], typer.Option(help="columns that are categories, also if they look like numbers")]
Date = Annotated[Optional[str], typer.Option(help="columns that are dates, read as days (a, or a:%d.%m.%Y)")]
Missing = Annotated[Optional[str], typer.Option(help="what else stands for a missing value in a table (-999,unknown)")]
Encoding = Annotated[Optional[str], typer.Option(help="encoding of a csv file, such as latin-1")]
Decimal = Annotated[Optional[str], typer.Option(help="decimal sign of a csv file: . or ,")]


TABLE_OPTIONS: dict[str, Any] = {
    "drop": Drop,
    "numeric": Numeric,
    "categorical": Categorical,
    "date": Date,
    "missing": Missing,
    "encoding": Encoding,
    "decimal": Decimal,
}


def with_table_options(
    parameter: str = "data", example: str = "--data csv:PATH"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options about a table's columns; they end up in the text of its data, `parameter`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [*inspect.signature(command, eval_str=True).parameters.values()]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in TABLE_OPTIONS.items()
        ]

        @functools.wraps(command)
        def run_command(**given: Any) -> None:
            asked = {name: given.pop(name, None) for name in TABLE_OPTIONS}
            text = in_data_text(given.get(parameter), asked, example)
            command(**(given if text is None else {**given, parameter: text}))

        run_command.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        run_command.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
        return run_command

    return decorate


def in_data_text(source: str | None, options: Mapping[str, str | None], example: str) -> str | None:
    """The data's text with options about a table's columns in it: `--drop id` as `csv:my.csv?drop=id`."""
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return source
    if source is None or not source.startswith(("csv:", "parquet:")):
        name = next(iter(given))
        raise SettingError(f"--{name} is about the columns of a table; use it with {example}.")
    from urllib.parse import quote

    query = "&".join(f"{name}={quote(value, safe=', :')}" for name, value in given.items())
    return f"{source}{'&' if '?' in source else '?'}{query}"


def part_settings(assignments: list[str]) -> dict[str, Any]:
    """`fine_tune.epochs=3` as {"fine_tune": {"epochs": 3}}; a bare name, `mu=0.1`, stays as it is."""
    import yaml

    chosen: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        part, dot, key = name.strip().partition(".")
        if not (equals and part and (key or not dot)):
            raise SettingError(
                f"--set {text!r} cannot be read; write it as part.setting=value: --set fine_tune.epochs=3"
            )
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SettingError(f"--set {text!r} cannot be read: {value!r} is no value; try {name}=3") from None
        if dot:
            below = chosen.setdefault(part, {})
            chosen[part] = {**(below if isinstance(below, dict) else {}), key: read}
        else:
            chosen[part] = read
    return chosen
