"""How a method's name is read: recipes and parts that `+` joins, pieces of your own, and objects from Python.

`fedavg` is a recipe, `fine_tune` is a part, `my_file.py:MyPart` is a part or recipe of your own, and `+` joins any of
them. Settings of a part are given by the part's name: `--set fine_tune.epochs=3`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedframe.core import Method, Part
from fedframe.core.hook_errors import call_in_place, named_errors
from fedframe.core.method import combine
from fedframe.core.part import overrides, tasks_of
from fedframe.data.target import TASKS
from fedframe.errors import SettingError, nearest
from fedframe.methods.catalogue import RECIPES as RECIPES
from fedframe.methods.part_settings import default_part, is_complete, make_part
from fedframe.methods.parts import DEFAULTS, PARTS, TASK_LOSSES, TASK_PARTS
from fedframe.methods.recipe import Recipe as Recipe
from fedframe.settings import merge_part_settings, merge_settings
from fedframe.util.locate import locate

MethodLike = str | Part | type[Part] | Recipe | Sequence["MethodLike"]
PYTHON = "python:"  # in settings: how a piece of a method begins that was an object, not a name
LONGEST_LABEL = 40  # characters of an object in a table
_OBJECTS: dict[str, Recipe] = {}  # such pieces that this process was given, by their texts in settings


def method_text(method: MethodLike) -> str:
    """The text that stands for a method in settings: its name, or `python:` and what its parts look like.

    A part, a part's class or a recipe is kept under its text, so that the text is understood in this process.
    """
    if isinstance(method, str):
        return method
    if isinstance(method, list | tuple) and method:
        texts = [method_text(piece) for piece in method]
        refuse_twins(texts, method)
        return "+".join(texts)
    if isinstance(method, Recipe):
        recipe = method
        for part in recipe.parts:
            check_own(f"The recipe {recipe.name}", type(part))
        text = f"{recipe.name}({', '.join(map(part_text, recipe.parts))})"
    elif isinstance(method, Part) or (isinstance(method, type) and issubclass(method, Part)):
        kind = method if isinstance(method, type) else type(method)
        check_own("From Python", kind)
        part = default_part(kind) if isinstance(method, type) else make_part(kind, vars(method))
        recipe, text = Recipe(kind.name, first_line(kind), kind.paper, (part,)), part_text(part)
    else:
        raise SettingError(
            f"method = {method!r} is of another kind; give a name, a part (made from fedframe.Part), a Recipe, or a "
            "list of them."
        )
    key = PYTHON + one_line(text)
    _OBJECTS[key] = recipe
    return key


def refuse_twins(texts: Sequence[str], pieces: Sequence[MethodLike]) -> None:
    """Refuse two classes of one name: under their text, one would take the other's place."""
    kinds: dict[str, object] = {}
    for text, piece in zip(texts, pieces, strict=True):
        kind = piece if isinstance(piece, type | str | list | tuple) else type(piece)
        if text.startswith(PYTHON) and isinstance(kind, type) and kinds.setdefault(text, kind) is not kind:
            raise SettingError(f"method: two classes are called {kind.__name__}; call one of them otherwise.")


def method_label(
    name: str, settings: Mapping[str, Mapping[str, Any]] | None = None, left_out: Collection[tuple[str, str]] = ()
) -> str:
    """A method's text as tables show it: objects without `python:`, and long ones by their names alone.

    Objects have the values that they run with, after `settings` of parts; those in `left_out`, by part and name, are
    said elsewhere or vary, and have none.
    """
    pieces = [piece.strip() for piece in name.split("+")]
    given = {piece: object_text(piece, settings or {}, left_out) for piece in pieces if piece.startswith(PYTHON)}
    short = {piece: text if len(text) <= LONGEST_LABEL else python_recipe(piece).name for piece, text in given.items()}
    return "+".join(short.get(piece, piece) for piece in pieces) if given else name


def object_text(
    piece: str, settings: Mapping[str, Mapping[str, Any]], left_out: Collection[tuple[str, str]] = ()
) -> str:
    """A piece that was an object as one writes it, with the values of its parts as they are after `settings`."""
    text = piece.removeprefix(PYTHON)
    for part in _OBJECTS[piece].parts if piece in _OBJECTS else ():
        own = {key: value for key, value in settings.get(part.name, {}).items() if key in vars(part)}
        hidden = {key for key in vars(part) if (part.name, key) in left_out}
        if own or hidden:
            text = text.replace(one_line(part_text(part)), one_line(part_text(part, own, hidden)))
    return text


def part_text(part: Part, changed: Mapping[str, Any] | None = None, hidden: Collection[str] = ()) -> str:
    """A part as one writes it, with some values changed and some hidden."""
    values = {key: value for key, value in {**vars(part), **(changed or {})}.items() if key not in hidden}
    inner = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return f"{type(part).__name__}({inner})" if inner or not hidden else type(part).__name__


def one_line(text: str) -> str:
    """A text as a piece of a method: on one line, without the + that joins pieces."""
    return " ".join(text.split()).replace("+", "%2B")


def python_recipe(key: str) -> Recipe:
    """An object that this process was given as a method, by its text."""
    if key not in _OBJECTS:
        raise SettingError(
            f"The method {key.removeprefix(PYTHON)} came from Python; give it again there, as method=..., for example "
            "fedframe.resume(folder, method=...)."
        )
    return _OBJECTS[key]


def confirm_method(recorded: str, method: MethodLike | None) -> None:
    """Take a run's method that is given again; refuse one that is not the run's."""
    if method is not None and method_text(method) != recorded:
        raise SettingError(f"The run's method is {recorded}, not {method_text(method)}; give the run's own again.")


def find_recipes(name: str) -> list[Recipe]:
    """The recipes and parts that a method's name joins with `+`."""
    found: list[Recipe] = []
    for piece in name.split("+"):
        key = piece.strip()
        if not key:
            raise SettingError(f"method = {name!r}: a name is missing beside a +; write it as fedavg+etf.")
        if key in RECIPES:
            found.append(RECIPES[key])
        elif key in PARTS:
            found.append(Recipe(key, f"The part {key}.", PARTS[key].paper, (default_part(PARTS[key]),)))
        elif key.startswith(PYTHON):
            found.append(python_recipe(key))
        elif ".py" in key or ":" in key:
            found.append(own_recipe(key))
        else:
            raise SettingError(f"There is no method {key!r}; {nearest(key, [*RECIPES, *PARTS])}")
    if len(found) == 1 and found[0].alone is not None:
        return [found[0].alone]
    return found


def own_recipe(path: str) -> Recipe:
    """What `my_file.py:MyPart` names: a part's class, or a recipe that the user has put together."""
    found = locate(path, "part", "MyPart")
    if isinstance(found, Recipe):
        for part in found.parts:
            check_own(path, type(part))
        return found
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise SettingError(
            f"{path} is of another kind: a method's piece is a class made from fedframe.Part, or a Recipe."
        )
    check_own(path, found)
    return Recipe(found.name, first_line(found), found.paper, (default_part(found),))


def check_own(path: str, kind: type[Part]) -> None:
    """Refuse what would be ignored silently: fields that are no settings, and a name that is another part's."""
    name = getattr(kind, "name", "")
    if not name:
        raise SettingError(f"{path}: {kind.__name__} has no name; write in it: name: ClassVar[str] = 'my_part'.")
    if PARTS.get(name, kind) is not kind or (name in RECIPES and name not in PARTS):
        raise SettingError(f"{path}: the name {name!r} is taken; call the part otherwise, e.g. 'my_{name}'.")
    settings = {field.name for field in dataclasses.fields(kind)}
    for key, annotation in vars(kind).get("__annotations__", {}).items():
        if key not in settings and "ClassVar" not in str(annotation):
            raise SettingError(f"{path}: {key} is no setting yet; write @dataclass(frozen=True) above {kind.__name__}.")


def first_line(part: type[Part]) -> str:
    """The first line of a part's docstring."""
    return (part.__doc__ or f"The part {part.name}.").strip().splitlines()[0]


def recipe_defaults(name: str) -> dict[str, Any]:
    """The run settings that a method brings along; where two recipes differ, the later one counts."""
    return merge_settings(*(recipe.defaults for recipe in find_recipes(name)))


def new_run_settings(name: str) -> dict[str, dict[str, Any]]:
    """The settings of parts that a new run of a method names, whatever their defaults are."""
    return merge_part_settings(*(recipe.new_runs for recipe in find_recipes(name)))


def make_method(name: str, settings: Mapping[str, Mapping[str, Any]], task: str = "classification") -> Method:
    """The method that a name stands for, with its parts' settings changed as asked; what it cannot learn is refused."""
    method = outline_method(name, settings, task)
    for part in method.parts:
        if task not in tasks_of(type(part)):
            able = [each for each in TASKS if each in tasks_of(TASK_PARTS.get((each, type(part)), type(part)))]
            raise SettingError(
                f"method = {name!r} cannot be used for task = {task}: its part {part.name!r} works with "
                f"{' and '.join(able)} only; use a method without it, such as fedavg."
            )
    for part in method.parts:
        if not is_complete(part):
            make_part(type(part), vars(part))  # refuses it with the setting's name
    return method


def outline_method(
    name: str, settings: Mapping[str, Mapping[str, Any]] | None = None, task: str = "classification"
) -> Method:
    """The parts of a method, of which settings without a default may still lack a value: not one to run."""
    settings = settings or {}
    recipes = find_recipes(name)
    parts = [part for recipe in recipes for part in recipe.parts]
    origins = {part.name: recipe.name for recipe in recipes for part in recipe.parts if part.name != recipe.name}
    losses = [TASK_LOSSES.get(task, kind) if overrides(kind, "loss") else kind for kind in DEFAULTS]
    chosen = combine(name, parts, [default() for default in losses], origins)
    names = [part.name for part in chosen.parts]
    for key in settings:
        if key not in names:
            raise SettingError(f"{name!r} has no part {key!r} to set; {nearest(key, names)}")
    brought = {
        part.name: vars(part) | {k: v for recipe in recipes for k, v in recipe.part_defaults.get(part.name, {}).items()}
        for part in chosen.parts
    }
    parts = []
    for part in chosen.parts:
        changed = brought[part.name] | dict(settings.get(part.name, {}))
        kind = TASK_PARTS.get((task, type(part)), type(part))
        same = changed == vars(part) and kind is type(part)
        parts.append(part if same else make_part(kind, changed, brought[part.name]))
    method = Method(name, tuple(parts), chosen.defaults)
    if all(is_complete(part) for part in parts):
        with named_errors(f"method = {name!r}"):
            for part in method.parts_with("check_method"):
                call_in_place(part, "check_method", method)
    return method
