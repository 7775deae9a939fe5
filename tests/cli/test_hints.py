"""What a person most likely meant is said in one sentence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from fedframe.cli import app
from fedframe.cli.federation import federation
from fedframe.cli.hints import COMMANDS, OPTIONS, option_hint
from fedframe.errors import SettingError
from fedframe.methods.parts import PARTS
from fedframe.methods.setting_texts import setting_text
from fedframe.settings import Settings

RUN = CliRunner()


def said(*words: str) -> str:
    """What a refused command prints, in one line and without the frame."""
    done = RUN.invoke(app, words)
    assert done.exit_code == 2, done.output
    return " ".join(done.output.replace("│", " ").split())


def test_names_of_other_programs_lead_to_ours() -> None:
    assert "There is no option --learning-rate; use --lr." in said("run", "fedavg", "--learning-rate", "0.1")
    assert "use --batch." in said("run", "--batch_size", "8")
    assert "fedframe report runs/*" in said("runs")
    assert "There is no command 'trian'" in said("trian")


def test_a_setting_of_a_part_leads_to_set() -> None:
    text = said("run", "fedavg", "--mu", "0.1")
    assert "use --set prox.mu=VALUE" in text
    assert option_hint("--no-such-thing") is None


def test_every_hint_about_an_option_names_one_that_exists() -> None:
    flags = {f"--{name.replace('_', '-')}" for name in Settings.model_fields}
    assert {hint.split()[0] for hint in OPTIONS.values()} <= flags | {"--out"}
    assert not {f"--{name}" for name in OPTIONS} & flags


def test_every_hint_about_a_command_names_one_that_exists() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    for name, hint in COMMANDS.items():
        assert name not in known
        named = hint.split("fedframe ")[1].split()[0].rstrip("':")
        assert named in known | {"--help"}, hint


def test_list_shows_one_kind() -> None:
    done = RUN.invoke(app, ["list", "nets"])
    assert done.exit_code == 0
    assert "Nets (--model)" in done.output
    assert "fedavg" not in done.output
    with pytest.raises(SettingError, match="choose one of: data, methods, nets, partitions, parts"):
        RUN.invoke(app, ["list", "wheels"], catch_exceptions=False)


@pytest.mark.parametrize("name", PARTS)
def test_every_setting_of_a_part_has_a_sentence(name: str) -> None:
    for field in dataclasses.fields(PARTS[name]):
        text = setting_text(PARTS[name], field.name)
        assert text.endswith("."), f"{name}.{field.name} has no string below it that says what it means"
        assert text[0] == "`" or text[0].isupper(), text


def test_show_explains_settings() -> None:
    assert "Strength of the pull towards the server's model" in RUN.invoke(app, ["show", "fedprox"]).output


def test_help_explains_every_argument() -> None:
    commands = [(app, "run"), (app, "predict"), (federation, "join"), (federation, "add")]
    for owner, name in commands:
        group: Any = typer.main.get_command(owner)
        context = group.make_context("fedframe", [], resilient_parsing=True)
        arguments = [each for each in group.get_command(context, name).params if each.param_type_name == "argument"]
        assert arguments
        assert all(each.help for each in arguments), name


def test_help_has_no_names_of_types() -> None:
    for command in ("run", "data", "compare", "predict"):
        text = RUN.invoke(app, [command, "--help"]).output
        assert not any(word in text.lower() for word in ("<str>", "<bool>", "list[", "integer", "boolean")), text
