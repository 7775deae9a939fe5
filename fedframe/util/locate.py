"""Users' own code: found by its path, `my_file.py:MyNet` or `package.module:MyNet`, in any process, with its files."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from urllib.parse import quote, unquote_plus

from fedframe.errors import SettingError, nearest
from fedframe.util.code_files import LIBRARIES, code_files, import_root, importable, in_library
from fedframe.util.plain_files import refuse_pipe

GENERATED = "__create_fn__.<locals>."  # how the names begin of functions that dataclasses make, also by `exec`


def locate(path: str, what: str = "net", example: str = "MyNet") -> object:
    """Import the object that `my_file.py:MyNet` names; names from elsewhere go through `allowed_code` before."""
    place, _, name = path.rpartition(":")
    if not place or not name or path.endswith(".py"):
        classes = class_names(Path(path).expanduser())
        shown = f"{path}:{classes[0]}" if len(classes) == 1 else f"my_file.py:{example}"
        also = f"; its classes are {', '.join(classes)}" if len(classes) > 1 else ""
        raise SettingError(f"The {what} {path!r} names a file but no class in it: write for example {shown!r}{also}.")
    try:
        module = _load_file(Path(place).expanduser()) if place.endswith(".py") else _load_module(place)
    except FileNotFoundError as error:
        raise SettingError(f"The {what} {path!r} could not be loaded: there is no file {error.filename}.") from error
    except Exception as error:  # the user's code may raise anything
        top = place.partition(".")[0]  # of an installed package, which is the user's own here
        where = location(error, [Path(folder, name) for folder in sys.path for name in (top, f"{top}.py")])
        line = f" ({where})" if where else ""
        raise SettingError(f"The {what} {path!r} could not be loaded: {reason(error)}{line}.") from error
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = nearest(name, known) if known else "it holds no class or function."
        raise SettingError(f"The {what} {path!r} could not be loaded: {place} has no {name!r}; {hint}")
    return getattr(module, name)


def class_names(file: Path) -> list[str]:
    """The classes in a file of Python, as its text has them; none if it cannot be read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def reason(error: Exception) -> str:
    """The type and first line of an error that a user's code raised."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def reason_and_place(error: Exception) -> str:
    """The kind and first line of an error, and where it was raised if that is in a user's file."""
    where = location(error)
    return reason(error) + (f" ({where})" if where else "")


def is_generated(code: CodeType) -> bool:
    """Whether a function was made by a dataclass: its fields say all of it."""
    return code.co_qualname.startswith(GENERATED)


def location(error: BaseException, places: Collection[Path] = ()) -> str | None:
    """Where in a user's file an error was raised: `mine.py, line 12, in Mine.penalty`; None if nowhere.

    The deepest such line counts: a hook that hands torch the wrong shape is at fault, not torch. Files and folders in
    `places` count as the user's, wherever they are.
    """
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        file = Path(code.co_filename)
        if is_generated(code):  # the line that called it says more
            continue
        if any(file.is_relative_to(place) for place in places) or not in_library(file):
            found = f"{file}, line {line}" + ("" if code.co_name == "<module>" else f", in {code.co_qualname}")
    return found


def describe_error(error: BaseException, places: Collection[Path] = ()) -> str:
    """The kind and text of an error, and where it was raised if that is in a user's file."""
    where = location(error, places)
    text = " ".join(str(error).split())
    return type(error).__name__ + (f": {text}" if text else "") + (f" ({where})" if where else "")


def own_error(error: BaseException) -> str | None:
    """One sentence on an error that a user's own code raised, with file, line and function; None if it was not."""
    return None if location(error) is None else f"{describe_error(error)}."


def _load_module(name: str) -> ModuleType:
    with importable(Path.cwd()):
        return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    path.stat()  # raises FileNotFoundError
    refuse_pipe(path)
    stamps = {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in code_files(str(path))}
    # The same name in every process and at every call, so that a class stays one class.
    name = f"fedframe_own_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    known = sys.modules.get(name)
    if known is not None and vars(known).get("_fedframe_stamps") == stamps:
        return known
    root = import_root(path)
    for file in stamps:
        for folder in {path.parent, root}:
            if Path(file).is_relative_to(folder):
                other = ".".join(Path(file).relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
                _forget_if_stale(other, file, stamps)
    module = ModuleType(name)
    vars(module).update(__file__=str(path), _fedframe_stamps=stamps)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look their module up by name
    try:
        with importable(path.parent), importable(root):
            # Compiled here, not by an import loader: no stale cache and no __pycache__ beside the file.
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
        for loaded in [*sys.modules.values()]:
            if getattr(loaded, "__file__", None) in stamps:
                vars(loaded).setdefault("_fedframe_stamp", stamps[str(loaded.__file__)])
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _forget_if_stale(name: str, file: str, stamps: Mapping[str, tuple[int, int]]) -> None:
    """Forget a module that was edited since, or that has the same name but comes from another folder."""
    loaded = sys.modules.get(name)
    if loaded is None:
        return
    origin = getattr(loaded, "__file__", None) or ""
    edited = origin == file and vars(loaded).get("_fedframe_stamp", stamps[file]) != stamps[file]
    elsewhere = origin != file and not any(Path(origin).is_relative_to(place) for place in LIBRARIES)
    if edited or (elsewhere and "_fedframe_stamp" in vars(loaded)):
        del sys.modules[name]


def resolve_paths(spec: str) -> str:
    """A spec with its paths made absolute, so that a run can be resumed and used from any folder."""
    kind, colon, rest = spec.partition(":")
    if colon and kind in ("npz", "csv", "parquet", "imagefolder", "list", "dicom"):
        path, question, query = rest.partition("?")
        options = [_resolve_root(option) for option in query.split("&")]
        return f"{kind}:{Path(path).expanduser().absolute()}{question}{'&'.join(options)}"
    if colon and kind == "hf":  # a folder, or a name in the hub
        path, question, query = rest.partition("?")
        folder = Path(path).expanduser()
        return f"{kind}:{folder.absolute()}{question}{query}" if folder.exists() else spec
    if colon and kind.endswith(".py"):
        return f"{Path(kind).expanduser().absolute()}:{rest}"
    return spec


def _resolve_root(option: str) -> str:
    name, equals, value = option.partition("=")
    if name != "root" or not value:
        return option
    return f"{name}{equals}{quote(str(Path(unquote_plus(value)).expanduser().absolute()), safe='/')}"
