"""The command that names methods to try."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Optional

import typer

from fedframe.cli.app import app


class Wanted(StrEnum):
    """Which model matters."""

    shared = "shared"
    personal = "personal"


class Kept(StrEnum):
    """What must stay hidden."""

    none = "none"
    secure = "secure"
    noise = "noise"


@app.command()
def advise(
    data: Annotated[str, typer.Option(help="data source, see 'fedframe list data'")] = "digits",
    partition: Annotated[str, typer.Option(help="how samples are distributed to clients")] = "auto",
    clients: Annotated[Optional[int], typer.Option(help="number of clients")] = None,
    label: Annotated[Optional[str], typer.Option(help="label column of tabular data")] = None,
    client_column: Annotated[Optional[str], typer.Option(help="client column of tabular data")] = None,
    data_dir: Annotated[Optional[str], typer.Option(help="folder of the public data sets")] = None,
    min_client_size: Annotated[Optional[int], typer.Option(help="fewest samples a client may hold")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="how many rounds you can afford")] = 30,
    want: Annotated[Wanted, typer.Option(help="which model matters: shared or personal")] = Wanted.shared,
    privacy: Annotated[
        Kept, typer.Option(help="none, secure (the organiser sees sums only) or noise (differential privacy)")
    ] = Kept.none,
    new_clients: Annotated[bool, typer.Option("--new-clients", help="clients will join or leave later")] = False,
    attackers: Annotated[bool, typer.Option("--attackers", help="some clients may send false updates")] = False,
) -> None:
    """Look at data and name three methods to try, with the reason, the command and how sure the evidence is."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from fedframe.experiments.advise import SURE, facts_lines, look
    from fedframe.experiments.advise import advise as find

    given = {
        name: value
        for name, value in {
            "data": data,
            "partition": None if partition == "auto" else partition,
            "clients": clients,
            "label": label,
            "client_column": client_column,
            "data_dir": data_dir,
            "min_client_size": min_client_size,
        }.items()
        if value is not None
    }
    facts = look(
        given, rounds=rounds, wish=want.value, privacy=privacy.value, new_clients=new_clients, attackers=attackers
    )
    console = Console()
    for line in facts_lines(facts):
        console.print(line, markup=False, highlight=False)
    for number, candidate in enumerate(find(facts, given), 1):
        rule = candidate.rule
        console.print()
        console.print(f"{number}. [bold]{rule.method}[/bold]  ({rule.when})", highlight=False)
        for text in (rule.reason, f"Evidence: {rule.evidence} (docs/{rule.page}); {SURE[rule.sure]}."):
            console.print(Padding(Text(text), (0, 0, 0, 3)))
        console.print(f"   {candidate.command}", markup=False, highlight=False, soft_wrap=True)
    if privacy is not Kept.none:
        return  # the options of a private run differ between candidates
    console.print()
    methods = " ".join(candidate.rule.method for candidate in find(facts, given))
    tail = "Then compare them on the same clients, tuned alike: fedframe compare " + methods + " --seeds 3"
    console.print(Text(tail))
