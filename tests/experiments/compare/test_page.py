"""Every command and file on the page about comparing is one that works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedframe.experiments.compare.cases import CASES
from fedframe.experiments.compare.request import ComparisonRequest, make_plan, make_plans
from fedframe.experiments.compare.rows import read_sweep

PAGE = (Path(__file__).parents[3] / "docs" / "compare.md").read_text()
BLOCKS = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
COMMANDS = [line for line in BLOCKS.splitlines() if line.startswith("fedframe compare")]


def request_of(command: str) -> ComparisonRequest:
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
    return ComparisonRequest(methods, seeds=seeds, sweep=sweeps, select=select, settings=options)


def test_page_has_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_a_plan_with_one_budget_for_all(command: str) -> None:
    asked = request_of(command)
    chosen = [name for name in asked.sweep if name not in CASES]
    for plan in make_plans(asked):
        assert len({len(row.candidates) for row in plan.rows}) == 1
        assert (plan.tuning is not None) == (bool(chosen) or "[" in command)


def test_sweep_over_what_all_share_is_a_plan_per_value() -> None:
    (command,) = [each for each in COMMANDS if "--sweep lr=0.01,0.1 --sweep alpha=0.1,0.5" in each]
    assert [plan.settings["partition"] for plan in make_plans(request_of(command))] == [
        "dirichlet:0.1",
        "dirichlet:0.5",
    ]


def test_file_is_a_plan(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    (tmp_path / "my.yaml").write_text(found[1])
    plan = make_plan(ComparisonRequest(config=tmp_path / "my.yaml"))
    assert [(row.label, len(row.candidates)) for row in plan.rows] == [("fedavg", 4), ("FedProx", 4), ("fedetf", 4)]
