"""Hints for commands and options that do not exist under the name that was typed: words of other programs, and settings
of parts, which are given with --set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from typer.core import TyperGroup
from typer.utils import get_params_from_function

from fedframe.errors import nearest

# What other libraries call it, or what a person would try first -> what to type here.
OPTIONS: Mapping[str, str] = {
    "alpha": "--partition dirichlet:0.1",
    "arch": "--model",
    "batch-size": "--batch",
    "bs": "--batch",
    "comm-rounds": "--rounds",
    "dataset": "--data",
    "eta": "--lr",
    "fraction": "--participation",
    "fraction-fit": "--participation",
    "global-rounds": "--rounds",
    "gpu": "--device cuda",
    "join-ratio": "--participation",
    "learning-rate": "--lr",
    "local-epochs": "--epochs",
    "local-steps": "--steps",
    "n-clients": "--clients",
    "net": "--model",
    "num-clients": "--clients",
    "num-epochs": "--epochs",
    "num-nodes": "--nodes",
    "num-rounds": "--rounds",
    "num-workers": "--workers",
    "optim": "--optimizer",
    "output": "--out",
    "sample-rate": "--participation",
    "scheduler": "--lr-schedule",
    "split": "--partition",
    "wd": "--weight-decay",
}
COMMANDS: Mapping[str, str] = {
    "continue": "'fedframe resume RUN'",
    "docs": "'fedframe --help'",
    "evaluate": "'fedframe measure RUN'",
    "finetune": "'fedframe personalise RUN --data DATA'",
    "help": "'fedframe --help'",
    "methods": "'fedframe list methods'",
    "nets": "'fedframe list nets'",
    "personalize": "'fedframe personalise RUN --data DATA'",
    "runs": "'fedframe report runs/*': every run has a folder below runs/, and there is no command that lists them",
    "simulate": "'fedframe run METHOD', or 'fedframe run METHOD --engine flower' for real processes",
    "sweep": "'fedframe compare METHOD --sweep lr=0.01,0.1'",
    "test": "'fedframe measure RUN'",
    "train": "'fedframe run METHOD'",
}


class HintingGroup(TyperGroup):
    """Commands with one hint on what was probably meant; typer and click would each add a guess of their own."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command; its help names values as people do, whatever typer would call their types."""
        command = super().get_command(ctx, cmd_name)
        texts = argument_texts(command)
        for parameter in getattr(command, "params", []):
            if parameter.param_type_name == "argument":
                parameter.help = parameter.help or texts.get(parameter.name)
                parameter.display_type_rich = lambda ctx: None  # newer typers print the type beside the name
            elif parameter.metavar is None:
                parameter.metavar = plain_word(parameter)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or say which one does it."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = COMMANDS.get(args[0].lower())
            hint = f"use {known}." if known else nearest(args[0], self.list_commands(ctx))
            ctx.fail(f"There is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an option that it does not have gets our hint."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            hint = option_hint(getattr(error, "option_name", None))
            if hint is not None and hasattr(error, "possibilities"):
                error.message, error.possibilities = hint, None  # type: ignore[attr-defined]
            raise


def argument_texts(command: Any) -> dict[str, str]:
    """The help of a command's arguments by name: click 8.5 overwrites what typer 0.20 has set."""
    function = getattr(command, "callback", None)
    found = get_params_from_function(function) if function is not None else {}
    return {name: text for name, each in found.items() if (text := getattr(each.default, "help", None))}


def plain_word(parameter: Any) -> str:
    """What stands for an option's value in the help: PATH, NUMBER or TEXT, and nothing for a switch."""
    kind = str(parameter.display_type(None) if hasattr(parameter, "display_type") else parameter.type.name).lower()
    if getattr(parameter, "is_flag", False) or "bool" in kind:
        return ""
    return "PATH" if "path" in kind else "NUMBER" if "int" in kind or "float" in kind else "TEXT"


def option_hint(option: str | None) -> str | None:
    """The sentence about an option that does not exist, if we know what was meant."""
    name = (option or "").lstrip("-").replace("_", "-").lower()
    if name in OPTIONS:
        return f"There is no option {option}; use {OPTIONS[name]}."
    if not name:
        return None
    from fedframe.methods.parts import PARTS  # torch, only where there is an error to explain

    owners = [
        part for part, kind in PARTS.items() if name.replace("-", "_") in {f.name for f in dataclasses.fields(kind)}
    ]
    if not owners:
        return None
    shown = ", ".join(owners[:4]) + (", ..." if len(owners) > 4 else "")
    return (
        f"There is no option {option}; it is a setting of a part ({shown}): use --set "
        f"{owners[0]}.{name.replace('-', '_')}=VALUE. 'fedframe show METHOD' lists the settings of a method."
    )
