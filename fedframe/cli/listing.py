"""Lists of methods, parts, data sources, partitions and nets; and the parts of one method, with their files."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedframe.core.part import filled_slots
from fedframe.data import PARTITIONS, SOURCES
from fedframe.errors import SettingError, nearest
from fedframe.methods.part_settings import default_part
from fedframe.methods.parts import PARTS
from fedframe.methods.recipes import (
    RECIPES,
    find_recipes,
    first_line,
    new_run_settings,
    outline_method,
    recipe_defaults,
)
from fedframe.methods.setting_texts import setting_text
from fedframe.models import NETS, ZOO_NETS
from fedframe.util.allowed_code import allow_typed
from fedframe.util.locate import locate


def print_lists(kind: str | None = None) -> None:
    """Print every name that a user can type, or those of one kind, with a line on each."""
    console = Console()
    groups = {
        "Methods (fedframe run METHOD; join with +)": {name: recipe.summary for name, recipe in RECIPES.items()},
        "Parts (fedframe show PART)": {name: first_line(part) for name, part in PARTS.items()},
        "Data (--data)": dict(SOURCES),
        "Partitions (--partition)": dict(PARTITIONS),
        "Nets (--model)": {**NETS, **ZOO_NETS},
    }
    kinds = {title.partition(" ")[0].lower(): title for title in groups}
    if kind is not None:
        asked = next((name for name in kinds if name.rstrip("s") == kind.lower().rstrip("s")), None)
        if asked is None:
            raise SettingError(f"There is no list {kind!r}; {nearest(kind, kinds)}")
        groups = {kinds[asked]: groups[kinds[asked]]}
    for title, lines in groups.items():
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2)
        )
        table.add_column(no_wrap=True)
        table.add_column()
        for name, text in lines.items():
            table.add_row(name, text)
        console.print(table)
        console.print()


def print_method(name: str) -> None:
    """Print the parts of a method with their files and settings, the run settings of its recipe, and its papers."""
    console = Console()
    for group in (SOURCES, PARTITIONS, NETS, ZOO_NETS):
        described = {key.partition(":")[0]: text for key, text in group.items()}
        if name.partition(":")[0] in described:
            console.print(f"{name}: {described[name.partition(':')[0]]}", markup=False, highlight=False)
            return
    allow_typed(name)
    recipes = find_recipes(name)
    # A part that is no method by itself is shown alone.
    alone = name in PARTS and name not in RECIPES
    shown = (default_part(PARTS[name]),) if alone else outline_method(name, new_run_settings(name)).parts
    console.print(f"[bold]{name}[/bold]", *(recipe.summary for recipe in recipes), sep="\n", highlight=False)
    papers = [recipe.paper for recipe in recipes] + [part.paper for part in shown if part.name != "mean"]
    for paper in dict.fromkeys(paper for paper in papers if paper):
        console.print(f"Paper: {paper}", highlight=False)
    for file in recipe_files(name):
        console.print(f"Recipe: {file}", markup=False, highlight=False, soft_wrap=True)
    for part in shown:
        slots = filled_slots(type(part))
        fills = f", fills {' and '.join(sorted(slots))}" if slots else ""
        console.print(f"\n[bold]{part.name}[/bold]{fills}", highlight=False)
        console.print(Padding(Text(first_line(type(part))), (0, 0, 0, 2)))
        console.print(f"  {source_file(type(part))}", markup=False, highlight=False, soft_wrap=True)
        for each in fields(part):  # on lines of their own, so that no name is cut off
            value = shown_value(getattr(part, each.name))
            console.print(f"  --set {part.name}.{each.name}={value}", markup=False, highlight=False, soft_wrap=True)
            if said := setting_text(type(part), each.name):
                console.print(Padding(Text(said), (0, 0, 0, 6)))
    console.print()
    defaults = recipe_defaults(name)
    if defaults:
        console.print("Brings along:", ", ".join(f"{key}={value}" for key, value in defaults.items()), highlight=False)


def source_file(kind: type) -> str:
    """The file that defines a class, as it can be opened from here."""
    return path_from_here(Path(inspect.getfile(kind)))


def path_from_here(path: Path) -> str:
    """A path relative to the current folder if it lies below that, and whole otherwise."""
    path, here = path.resolve(), Path.cwd().resolve()
    return (path.relative_to(here) if path.is_relative_to(here) else path).as_posix()


def recipe_files(name: str) -> list[str]:
    """The files of the recipes in a method's name, where they are not those of parts."""
    found = []
    for piece in map(str.strip, name.split("+")):
        place = piece.rpartition(":")[0]
        if piece in RECIPES:
            found.append(inspect.getfile(find_recipes))
        elif place.endswith(".py") and Path(place).expanduser().is_file() and not isinstance(locate(piece), type):
            found.append(place)
    return [path_from_here(Path(file).expanduser()) for file in dict.fromkeys(found)]


def shown_value(value: object) -> str:
    """A setting's value as it would be typed; empty for a default that follows from other settings."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
