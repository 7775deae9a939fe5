"""Every command and file on the page about comparing is one that works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedframe.comparing.planning import Request, make_plan
from fedframe.comparing.rows import read_sweep

PAGE = (Path(__file__).parent.parent.parent / "docs" / "compare.md").read_text()
BLOCKS = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
COMMANDS = [line for line in BLOCKS.splitlines() if line.startswith("fedframe compare")]


def request_of(command: str) -> Request:
    """What a command asks for."""
    words = shlex.split(command, comments=True)[2:]
    methods: list[str] = []
    sweeps: dict[str, list[Any]] = {}
    options: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            methods.append(word)
        elif word == "--sweep":
            name, values = read_sweep(words.pop(0))
            sweeps[name] = values
        else:
            options[word[2:].replace("-", "_")] = words.pop(0)
    seeds, select = int(options.pop("seeds", 3)), options.pop("select", "")
    return Request(methods, seeds=seeds, sweep=sweeps, select=select, settings=options)


def test_page_has_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_a_plan_with_one_budget_for_all(command: str) -> None:
    plan = make_plan(request_of(command))
    assert len({len(row.candidates) for row in plan.rows}) == 1
    assert (plan.tuning is not None) == ("--sweep" in command or "[" in command)


def test_file_is_a_plan(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    (tmp_path / "my.yaml").write_text(found[1])
    plan = make_plan(Request(config=tmp_path / "my.yaml"))
    assert [(row.label, len(row.candidates)) for row in plan.rows] == [("fedavg", 4), ("FedProx", 4), ("fedetf", 4)]
