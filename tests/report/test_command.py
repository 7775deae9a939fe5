"""The command on the page runs the same settings again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.cli import app
from fedframe.cli.options import part_settings
from fedframe.jobs.gather import gather
from fedframe.report.page.command import command
from fedframe.settings import PANELS, Settings

pytestmark = pytest.mark.slow  # trains many small runs


def settings_of(text: str) -> Settings:
    """What `fedframe run` would make of a command."""
    words = shlex.split(text)
    assert words[:2] == ["fedframe", "run"]
    group: Any = typer.main.get_command(app)
    context = group.commands["run"].make_context("run", words[2:])
    names = {name for panel in PANELS.values() for name in panel}
    given = {name: value for name, value in context.params.items() if name in names and value is not None}
    return gather(
        {"method": context.params["method"], **given, "set": part_settings(context.params["set_"] or [])}, None
    )


@settings(deadline=None)
@given(
    st.sampled_from(["fedavg", "fedetf", "scaffold+etf", "fedloge", "spherefed", "fedavg+analytic"]),
    st.fixed_dictionaries(
        {},
        optional={
            "lr": st.floats(1e-4, 2),
            "clients": st.integers(1, 50),
            "rounds": st.integers(1, 99),
            "partition": st.sampled_from(["dirichlet:0.5", "iid"]),
            "personal": st.booleans(),
            "momentum": st.sampled_from([0.0, 0.9]),
            "local_test": st.sampled_from([0.25, 0.0, "global"]),
            "data": st.sampled_from(["digits", "npz:/some where/it's.npz"]),
            "clip": st.sampled_from([1.0, 10.0]),
            "seed": st.integers(0, 9),
            "set": st.sampled_from([{}, {"fine_tune": {"epochs": 3}}, {"fine_tune": {"lr": 0.5, "epochs": 1}}]),
        },
    ),
)
def test_the_command_gives_the_same_settings(method: str, given: dict[str, Any]) -> None:
    wanted = gather({"method": method, **given}, None)
    assert settings_of(command(wanted.model_dump(mode="json"), Path("runs/x"))) == wanted


def test_the_command_of_a_run_that_does_not_name_a_setting_gives_it_its_default() -> None:
    new = gather({"method": "fedavg+analytic"}, None)
    assert "--set" not in command(new.model_dump(mode="json"), Path("runs/x"))
    old = new.model_copy(update={"set": {"analytic": {"width": 10}}})
    found = settings_of(command(old.model_dump(mode="json"), Path("runs/x")))
    assert found.set == {"analytic": {"map": "data", "width": 10}}


def test_what_the_command_line_cannot_say_is_read_from_the_file() -> None:
    values = gather({"method": "fedavg"}, None).model_dump(mode="json")
    assert (
        command({**values, "a setting of tomorrow": 1}, Path("runs/a b"))
        == "fedframe run --config 'runs/a b/config.yaml'"
    )


@pytest.mark.parametrize("name", ["data", "model"])
def test_what_came_from_python_is_said_to(name: str) -> None:
    values = gather({"method": "fedavg"}, None).model_dump(mode="json")
    assert command({**values, name: "python"}, Path("runs/x")).startswith("fedframe.run(config='runs/x/config.yaml'")
