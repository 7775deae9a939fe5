"""The pages of docs/methods say what the recipes, parts and commands are."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.core
import typer.main
import yaml

from fedframe.cli import app
from fedframe.cli.options import part_settings
from fedframe.core.method import parts_with
from fedframe.core.part import Part, Slot, filled_slots
from fedframe.data import PARTITIONS, SOURCES
from fedframe.data.augment import read_augment
from fedframe.errors import SettingError
from fedframe.experiments.papers.cells import Choice, cell_settings
from fedframe.experiments.papers.table import load_table, table_names
from fedframe.jobs.gather import gather
from fedframe.methods.parts import DEFAULTS, PARTS
from fedframe.methods.recipes import RECIPES, Recipe, make_method
from fedframe.models import NETS
from fedframe.settings import Settings
from tests.methods.test_recipes import ROWS
from tests.test_docs import ROOT

METHODS = ROOT / "docs" / "methods"
INDEX = (METHODS / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in sorted(METHODS.glob("*.md"))}
LINKS: dict[str, str] = dict(re.findall(r"^\| \[`(\w+)`\]\((\w+\.md)\) \|", INDEX, re.MULTILINE))  # recipe -> page
HEADINGS = (
    "Equations",
    "Run it",
    "What is sent and kept",
    "After training",
    "Settings",
    "Differs from the paper in",
    "Result",
    "Reference",
)


# -- reading pages -----------------------------------------------------------------------------------------------------
def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    level, _, _ = heading.partition(" ")
    assert f"\n{heading}\n" in text, heading
    return re.split(rf"\n#{{1,{len(level)}}} ", text.split(f"\n{heading}\n", 1)[1])[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, without backticks; heads and rules of tables are among them."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


def page_of(recipe: str) -> str:
    """The page that the index links for a recipe."""
    assert recipe in LINKS, f"docs/methods/README.md has no row for {recipe}"
    return LINKS[recipe]


def own_parts(recipe: Recipe) -> Iterable[Part]:
    """The parts that a recipe's page explains; FedAvg's explains the defaults for all."""
    return recipe.parts or [default() for default in DEFAULTS]


def says(cell: str, value: Any) -> bool:
    """Whether a table shows this default; None is an empty cell, as in docs/configuration.md."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return bool(re.fullmatch(r"[0-9.e-]+", cell)) and float(cell) == value
    return cell == ("" if value is None else str(value).lower() if isinstance(value, bool) else str(value))


def commands(text: str) -> Iterator[list[str]]:
    """The fedframe commands of a page's shell blocks, as words."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in re.sub(r"<<END\n.*?\nEND\n", "\n", block, flags=re.DOTALL).replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                assert words[0] in ("fedframe", "cat"), line
                if words[0] == "fedframe":
                    yield words[1:]


def files(text: str) -> dict[str, str]:
    """The files that a page's shell blocks write."""
    return dict(re.findall(r"^cat > (\S+) <<END\n(.*?\n)END$", text, re.DOTALL | re.MULTILINE))


# -- the index ---------------------------------------------------------------------------------------------------------
def changes(recipe: Recipe) -> str:
    """What a recipe changes, in the words of the index."""
    parts = recipe.parts
    claimed = {slot for part in parts for slot in filled_slots(type(part))}
    found = {
        "who trains": parts_with(parts, "select_clients"),
        "head": "head" in claimed,
        "features": parts_with(parts, "transform"),
        "loss": "loss" in claimed or parts_with(parts, "penalty"),
        "step": "step" in claimed or parts_with(parts, "correct"),
        "updates": parts_with(parts, "before_merge"),
        "merge": "merge" in claimed,
        "own model": "load_personal" in claimed,
        "server stage": "server_stage" in claimed,
        "client stage": "client_stage" in claimed,
        "private state": parts_with(parts, "private") or any(part.memory for part in parts),
    }
    rest = "server step" if parts_with(parts, "after_merge") else "nothing: the defaults"
    return ", ".join(word for word, changed in found.items() if changed) or rest


@pytest.mark.parametrize("name", RECIPES)
def test_index_says_what_a_recipe_changes_and_links_its_page(name: str) -> None:
    row = next(row for row in rows(INDEX) if row[0].startswith(f"[`{name}`]"))
    assert row[2] == changes(RECIPES[name])
    assert f"fedframe run {name}" in PAGES[page_of(name)]


def test_every_page_is_the_page_of_a_recipe_and_has_all_sections() -> None:
    assert {*LINKS} == {*RECIPES}
    assert {*PAGES} == {"README.md", *LINKS.values()}
    for page in {*LINKS.values()}:
        found = tuple(re.findall(r"^## (.*)$", PAGES[page], re.MULTILINE))
        assert found == HEADINGS, page


@pytest.mark.parametrize("slot", get_args(Slot))
def test_index_lists_the_parts_of_a_slot(slot: Slot) -> None:
    listed = next(row for row in rows(section(INDEX, "## Combining methods")) if row[0] == slot)[1]
    claimed = [name for name, part in PARTS.items() if slot in filled_slots(part)]
    assert re.findall(r"\w+", listed) == (claimed or ["none"])


@pytest.mark.parametrize("page", sorted({*LINKS.values()}))
def test_page_links_to_the_files_that_implement_its_parts(page: str) -> None:
    kinds = {part.name: type(part) for name in LINKS if LINKS[name] == page for part in own_parts(RECIPES[name])}
    linked = {
        part: (METHODS / target).resolve()
        for names, target in re.findall(r"\[([^\]]+)\]\((\.\./\.\./fedframe/\S+\.py)\)", PAGES[page])
        for part in re.findall(r"`(\w+)`", names)
    }
    assert linked == {name: Path(inspect.getfile(kind)).resolve() for name, kind in kinds.items()}


# -- settings ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", sorted({*LINKS.values()}))
def test_page_lists_every_setting_with_its_default(page: str) -> None:
    wanted: dict[str, Any] = {}
    for recipe in (RECIPES[name] for name, link in LINKS.items() if link == page):
        for part in own_parts(recipe):
            wanted |= {f"{part.name}.{f.name}": getattr(part, f.name) for f in dataclasses.fields(part)}
        for name, values in recipe.part_defaults.items():
            wanted |= {f"{name}.{key}": value for key, value in values.items()}
        for name, values in recipe.new_runs.items():
            wanted |= {f"{name}.{key}": value for key, value in values.items()}
        wanted |= recipe.defaults
    listed = {row[0]: row[1] for row in rows(section(PAGES[page], "## Settings")) if row[0] != "setting"}
    assert {*listed} == {*wanted}
    wrong = {name: (listed[name], value) for name, value in wanted.items() if not says(listed[name], value)}
    assert not wrong, f"{page} shows the first, the code has the second: {wrong}"


@pytest.mark.parametrize("name", RECIPES)
def test_page_leads_to_the_settings_of_the_defaults_it_uses(name: str) -> None:
    own = {part.name for part in own_parts(RECIPES[name])}
    others = [part for part in make_method(name, {}).parts if part.name not in own and dataclasses.fields(part)]
    assert not others or "(fedavg.md#settings)" in PAGES[page_of(name)]
    for part in others:
        assert f"`{part.name}`" in section(PAGES[page_of(name)], "## Settings")


def test_files_of_run_settings_are_those_of_the_recipes() -> None:
    for name, content in files(INDEX).items():
        assert yaml.safe_load(content) == RECIPES[Path(name).stem].defaults, name


# -- commands ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES)
def test_commands_are_understood(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in files(PAGES[page]).items():
        (tmp_path / name).write_text(content)
    program = typer.main.get_command(app)
    assert isinstance(program, typer.core.TyperGroup)
    found = [*commands(PAGES[page])]
    assert found
    for name, *words in found:
        given = program.commands[name].make_context(name, words).params
        if name == "run":
            check_run(given)


def check_run(given: dict[str, Any]) -> None:
    """All that a run refuses before it loads data."""
    chosen = {key: value for key, value in given.items() if key in Settings.model_fields and value is not None}
    settings = gather({**chosen, "set": part_settings(given["set_"] or [])}, given["config"])
    for part in make_method(settings.method, settings.set).parts:
        part.check_settings(settings)
    read_augment(settings.augment)
    assert kinds([settings.data]) <= kinds(SOURCES)
    assert kinds(settings.partition.split("+")) <= {"auto"} | kinds(PARTITIONS)
    assert kinds([settings.model]) <= {"auto"} | kinds(NETS)


# "as in the table `fedloge-1` (row FedLoGe, column C100 0.5 IF100)...:" and the command below it
CLAIM = re.compile(
    r"as in the table\s`([\w-]+)`\s\(row\s([^,]+),\scolumn\s(.+?)\)[^)]*?:\n\n(```sh\n.*?```)", re.DOTALL
)
CLAIMS = [(page, *found) for page, text in PAGES.items() for found in CLAIM.findall(text)]
HOW_IT_IS_SHOWN = {"method", "set", "eval_every", "personal", "save_personal"}  # parts are compared by themselves


def test_every_paper_with_tables_has_a_command_that_claims_its_setting() -> None:
    assert {table.rpartition("-")[0] for _, table, *_ in CLAIMS} == {name.rpartition("-")[0] for name in table_names()}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim[0]}, {claim[2]}")
def test_command_that_claims_a_papers_setting_has_those_of_the_tables_file(claim: tuple[str, ...]) -> None:
    _, name, row, column, block = claim
    table = load_table(name)
    row, column = (" ".join(text.split()) for text in (row, column))
    found = next(each for each in table.rows if each.name == row)
    wanted = cell_settings(table, found, column, 0, Choice())
    ((command, *words),) = commands(block)
    program = typer.main.get_command(app)
    assert isinstance(program, typer.core.TyperGroup)
    given = program.commands[command].make_context(command, words).params
    chosen = {key: value for key, value in given.items() if key in Settings.model_fields and value is not None}
    said = gather({**chosen, "set": part_settings(given["set_"] or [])}, None)
    differs = {
        key: (getattr(said, key), value)
        for key, value in wanted
        if key not in HOW_IT_IS_SHOWN and getattr(said, key) != value
    }
    assert not differs, "the page has the first, the table's file the second"
    parts = [{part.name: part for part in make_method(each.method, each.set).parts} for each in (said, wanted)]
    assert parts[0] == parts[1]


def kinds(names: Iterable[str]) -> set[str]:
    """Names without the values behind their colons."""
    return {name.partition(":")[0] for name in names}


def test_combinations_build_and_what_is_said_to_be_refused_is() -> None:
    text, refused = section(INDEX, "## Combining methods"), section(INDEX, "### What is refused")
    combinations = set(re.findall(r"`(\w+(?:\+\w+)+)`", text))
    clashes = set(re.findall(r"^\| `(\w+(?:\+\w+)+)`", refused, re.MULTILINE))
    assert clashes
    assert combinations - clashes
    for name in combinations - clashes:
        make_method(name, {})
    for name in clashes:
        with pytest.raises(SettingError):
            make_method(name, {})


def test_every_row_of_the_papers_tables_has_a_command() -> None:
    shown = {command[1] for command in commands(INDEX) if command[0] == "run"}
    assert {method for method, _ in ROWS.values()} <= shown
