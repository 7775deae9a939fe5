"""Commands in the pages: all of them parse, those of the tutorials run as they are printed, others say why not.

Every fenced sh block of every page is found here. A block is run (`RUN`), or its fedframe commands are parsed by the
program, so that an option that was renamed shows. `<!-- not run: reason -->` above a block of a page that runs
says why.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fedframe.cli import app
from tests.hold import DEADLINE
from tests.test_docs import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Run from top to bottom, in an empty folder, exactly as printed. docs/clinic.md has a test of its own, which takes
# the steps of docs/tutorials/three-hospitals.md and more: two minutes of real processes need not be had twice.
RUN = ["docs/tutorials/first-federation.md", "docs/tutorials/first-method.md", "docs/faq.md", "docs/which-method.md"]
# Programs that commands in the pages call besides ours.
OTHERS = {
    ".", ".venv/bin/pytest", "cat", "cd", "cp", "curl", "do", "docker", "done", "echo", "for", "git", "mkdir", "mkdocs",
    "nice", "openssl", "pip", "python", "python3", "pytest", "ruff", "sed", "sudo", "systemctl", "torchrun", "until",
    "bash", "tensorboard", "wait", "mypy", "lint-imports", "pre-commit", "export", "ls", "tar", "sleep", "grep", "helm",
    "kubectl",
}  # fmt: skip
BLOCK = re.compile(r"(<!-- not run: (?P<why>[^\n]*) -->\n)?```sh\n(?P<script>.*?)```", re.DOTALL)
SEPARATORS = {";", "|", "||", "&&", "&", "(", ")"}
REDIRECTIONS = {">", ">>", "<", ">&", "<<", "<<<"}
HEREDOC = re.compile(r"<<'?END'?\n.*?\nEND\n", re.DOTALL)


def blocks(page: Path) -> Iterator[tuple[str | None, str]]:
    """The shell blocks of a page, each with the reason why it is not run, if one is given."""
    for match in BLOCK.finditer(page.read_text()):
        yield match["why"], match["script"]


def command_lines(script: str) -> Iterator[list[str]]:
    """The words of a script's commands; one that is followed by || is shown to be refused, and left out."""
    for line in HEREDOC.sub("\n", script).replace("\\\n", " ").splitlines():
        parts = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        parts.whitespace_split = True
        words: list[str] = []
        redirected = False  # up to the next command
        for part in [*parts, ";"]:
            if part in SEPARATORS:
                if words and part != "||":
                    yield words
                words, redirected = [], False
            elif redirected or part in REDIRECTIONS:
                redirected = True
            elif part not in ("do", "then") and (words or not re.fullmatch(r"[A-Z_]+=.*", part)):
                words.append(part)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_parse(page: Path) -> None:
    program: Any = typer.main.get_command(app)
    for _, script in blocks(page):
        for words in command_lines(script):
            name = Path(words[0]).name
            if name == "fedframe":
                check_parses(program, words[1:])
            elif "/" not in words[0] or words[0].startswith("."):
                assert words[0] in OTHERS or name in OTHERS, f"what is {words[0]!r} in {page.name}?"


def check_parses(program: Any, words: list[str]) -> None:
    """The program knows the command, its options and its arguments; what they name is not looked at."""
    command, words = program, [word for word in words if word != "..."]
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            return  # --help, --version
        found = command.get_command(None, words[0])
        assert found is not None, f"no such command: {words}"
        command, words = found, words[1:]
    if "--help" not in words:
        command.make_context("fedframe", list(words))


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    run = [script for why, script in blocks(ROOT / page) if why is None]
    assert run
    program = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(run)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    if page.endswith("first-method.md"):
        assert "\nTrue\n" in done.stdout  # the part with weight 0 is FedAvg, bit for bit
