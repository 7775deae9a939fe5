"""Commands in the pages: all of them parse; they run as they are printed, or this file says why not.

Every fenced sh block of every page is found here, and its fedframe commands are parsed by the program, so that an
option that was renamed shows. A page's blocks run (`RUN`), another test runs them (`ELSEWHERE`), or there is a reason
why they do not (`NOT_RUN`). `<!-- not run: reason -->` above a block of a page that runs says why this one does not.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fedframe.cli import app
from tests.hold import DEADLINE
from tests.test_docs import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Run from top to bottom, in an empty folder, exactly as printed.
RUN = [
    "docs/export.md", "docs/faq.md", "docs/gain.md", "docs/index.md", "docs/measures.md", "docs/report.md",
    "docs/tasks.md", "docs/tutorials/first-federation.md", "docs/tutorials/first-method.md",
    "docs/which-method.md",
]  # fmt: skip
# Tests of their own run these. docs/clinic.md has the steps of docs/tutorials/three-hospitals.md and more: two minutes
# of real processes need not be had twice.
ELSEWHERE = {
    "docs/clinic.md": "tests/federation/test_clinic_guide.py",
    "docs/own-method.md": "tests/methods/test_own_method.py",
    "docs/tutorials/three-hospitals.md": "tests/federation/test_clinic_guide.py",
}
# Why the commands of these pages are only parsed, and which tests do the same on a small scale.
NOT_RUN = {
    "README.md": "continuous integration runs its test command; the pages of each command have the others (.ci/run)",
    "CONTRIBUTING.md": "continuous integration itself (.ci/run)",
    "docs/audit.md": "needs a federation that has trained: tests/federation/test_audit.py",
    "docs/bench.md": "minutes to a day: tests/experiments/bench",
    "docs/compare.md": "several trainings each: tests/experiments/compare",
    "docs/data.md": "needs downloads and the reader's own files: tests/data",
    "docs/deploy.md": "needs Docker, a cluster or root: tests/federation/test_deploy.py",
    "docs/federation/*": "needs several machines: tests/federation/test_clinic_guide.py plays the same steps on one",
    "docs/logging.md": "needs packages of others and a browser: tests/runs/test_loggers.py",
    "docs/methods/*": "papers' settings take minutes to hours: tests/methods/test_recipes.py runs every method",
    "docs/nets.md": "downloads and short trainings: tests/models",
    "docs/papers.md": "hours: tests/experiments/papers",
    "docs/results/*": "hours; the page has the figures that came out (benchmarks)",
    "docs/security.md": "needs a damaged run: tests/runs/test_damage.py",
    "docs/speed.md": "needs a GPU: tests/engines/test_devices.py",
    "docs/survey.md": "needs several nodes: tests/federation/test_survey_commands.py",
}
# Programs that commands in the pages call besides ours.
OTHERS = {
    ".", ".venv/bin/pytest", "cat", "cd", "cp", "curl", "do", "docker", "done", "echo", "for", "git", "mkdir", "mkdocs",
    "nice", "openssl", "pip", "python", "python3", "pytest", "ruff", "sed", "sudo", "systemctl", "torchrun", "until",
    "bash", "tensorboard", "wait", "mypy", "lint-imports", "pre-commit", "export", "ls", "tar", "sleep", "grep", "helm",
    "kubectl", "kill", "break", "{", "}",
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


def reason(page: str) -> str | None:
    """Why the commands of a page are not run here; None if they are."""
    return ELSEWHERE.get(page) or next((why for name, why in NOT_RUN.items() if fnmatch(page, name)), None)


@pytest.mark.parametrize("page", [page for page in PAGES if [*blocks(page)]], ids=lambda page: page.stem)
def test_a_page_runs_or_says_why_not(page: Path) -> None:
    why = reason(page.relative_to(ROOT).as_posix())
    assert (page.relative_to(ROOT).as_posix() in RUN) == (why is None)
    for place in re.findall(r"(?:tests/[\w/.]+|benchmarks|[.]ci/run)", why or ""):
        assert (ROOT / place.rstrip(".")).exists()


def test_no_reason_is_left_over() -> None:
    for name in [*RUN, *ELSEWHERE, *NOT_RUN]:
        assert any(fnmatch(page, name) for page in NAMES), name


@pytest.mark.slow
def test_the_python_page_runs_as_printed(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr[-3000:]


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
