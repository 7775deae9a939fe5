"""Importing a user's net or part by its path, `my_file.py:MyNet` or `package.module:MyNet`, in any process."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from fedframe.errors import SettingError, nearest


def locate(path: str, what: str = "net", example: str = "MyNet") -> object:
    """Import the object that `my_file.py:MyNet` or `package.module:MyNet` names."""
    place, _, name = path.rpartition(":")
    if not place or not name or path.endswith(".py"):
        raise SettingError(
            f"The {what} {path!r} names a file but no class in it: write for example 'my_file.py:{example}'."
        )
    try:
        module = _load_file(Path(place).expanduser()) if place.endswith(".py") else _load_module(place)
    except FileNotFoundError as error:
        raise SettingError(f"The {what} {path!r} could not be loaded: there is no file {error.filename}.") from error
    except Exception as error:  # the user's code may raise anything
        raise SettingError(f"The {what} {path!r} could not be loaded: {reason(error)}.") from error
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = nearest(name, known) if known else "it holds no class or function."
        raise SettingError(f"The {what} {path!r} could not be loaded: {place} has no {name!r}; {hint}")
    return getattr(module, name)


def reason(error: Exception) -> str:
    """The type and first line of an error that a user's code raised."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _load_module(name: str) -> ModuleType:
    with _importable(Path.cwd()):
        return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    stamp = path.stat().st_mtime_ns  # raises FileNotFoundError
    # The same name in every process and at every call, so that a class keeps its identity.
    name = f"fedframe_own_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    known = sys.modules.get(name)
    if known is not None and vars(known).get("_fedframe_stamp") == stamp:
        return known
    module = ModuleType(name)
    vars(module).update(__file__=str(path), _fedframe_stamp=stamp)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look their module up by name
    try:
        with _importable(path.parent):
            # Compiled here, not by an import loader: no stale cache and no __pycache__ beside the file.
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    if str(folder) in sys.path:
        yield
        return
    # Last, so that a user's `types.py` or `random.py` does not shadow the standard library's.
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def resolve_paths(spec: str) -> str:
    """A spec with its path made absolute, so that a run can be resumed and used from any folder."""
    kind, colon, rest = spec.partition(":")
    if colon and kind in ("npz", "csv", "parquet", "imagefolder", "list"):
        path, question, query = rest.partition("?")
        return f"{kind}:{Path(path).expanduser().absolute()}{question}{query}"
    if colon and kind.endswith(".py"):
        return f"{Path(kind).expanduser().absolute()}:{rest}"
    return spec
