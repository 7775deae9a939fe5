"""The files that a piece of a user's code is made of, found without running any of it."""

from __future__ import annotations

import ast
import importlib
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})
INSTALLED = frozenset({"site-packages", "dist-packages"})
TYPED = ("<stdin", "<ipython", "<input", "<string>")  # how names begin of code that was typed in or given to `exec`


def in_library(file: Path) -> bool:
    """Whether a file belongs to Fedframe, to Python or to an installed package, or is code made by one of them."""
    if str(file).startswith("<") and not str(file).startswith(TYPED):
        return True
    return any(file.is_relative_to(place) for place in (PACKAGE, *LIBRARIES)) or not INSTALLED.isdisjoint(file.parts)


def code_files(place: str) -> list[Path]:
    """The files of a user's code, named by a file or a module: its own, and those it imports from the same project.

    That is all below the folder above the topmost package. Imports are read from the text and not followed at run time,
    so that nothing has to be loaded for it.
    """
    if place.endswith(".py"):
        first = Path(place).expanduser().resolve()
        root, todo = import_root(first), [first]
    else:
        spec = find_module(place)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return []
        first = Path(spec.origin).resolve()
        folder = first.parent if first.name == "__init__.py" else first
        root = folder.parents[place.count(".")]  # by the name: packages need no __init__.py
        todo = [first, *_packages(first.parent, root)]
    top = root / first.relative_to(root).parts[0]  # of an installed package, whose folder holds others' too
    found: dict[Path, None] = {}
    while todo:
        path = todo.pop()
        if path not in found and path.is_file() and (path.is_relative_to(top) or not in_library(path)):
            found[path] = None
            todo += _imported_files(path, first.parent, root)
    return sorted(found)


def import_root(file: Path) -> Path:
    """The folder above the topmost package that a file is in; its own folder if it is in none."""
    return next(folder for folder in file.parents if not (folder / "__init__.py").is_file())


def _packages(folder: Path, above: Path) -> list[Path]:
    """The files that run when a module in this folder is imported: those of the packages below another folder."""
    folders = [each for each in (folder, *folder.parents) if each.is_relative_to(above) and each != above]
    return [each / "__init__.py" for each in folders if (each / "__init__.py").is_file()]


def _imported_files(path: Path, folder: Path, root: Path) -> list[Path]:
    """The files below a root that a Python file imports; absolute names are looked up there and in a folder."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names: list[tuple[Path, str]] = []  # where a dotted name is looked up, and the name
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(base, each.name) for base in {folder, root} for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            bases = {path.parents[node.level - 1]} if 0 < node.level <= len(path.parents) else {folder, root}
            module = node.module or ""
            found_in = [module, *(f"{module}.{each.name}".strip(".") for each in node.names)]
            names += [(base, name) for base in bases for name in found_in if name]
    found = []
    for base, name in names:
        place = base.joinpath(*name.split("."))
        module_file = place.with_name(f"{place.name}.py")
        # `import a.b` also runs a/__init__.py, and every package above.
        packages = _packages(place, root if base not in (folder, root) else base)
        found += [*([module_file] if module_file.is_file() else []), *packages]
    return [each.resolve() for each in found if each.resolve().is_relative_to(root)]


def find_module(name: str) -> ModuleSpec | None:
    """Where a module would be imported from; unlike `importlib.util.find_spec`, packages above it are not imported."""
    found: ModuleSpec | None = None
    search: Sequence[str] | None = None
    pieces = name.split(".")
    if not all(piece.isidentifier() for piece in pieces):
        return None
    with importable(Path.cwd()):
        for count, piece in enumerate(pieces, start=1):
            found = find_spec(".".join(pieces[:count]), search)
            inside = None if found is None else found.submodule_search_locations
            if found is None and search is not None:  # a folder without __init__.py in another one
                inside = [str(Path(folder, piece)) for folder in search if Path(folder, piece).is_dir()]
            if count < len(pieces) and not inside:
                return None
            search = [*inside] if inside else []
    return found


def find_spec(name: str, search: Sequence[str] | None) -> ModuleSpec | None:
    """Where one module would come from, of all places that Python looks at."""
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    try:
        found = (find(name, search, None) for find in finders if find is not None)
        return next((spec for spec in found if spec is not None), None)
    except KeyError:  # a folder without __init__.py asks for the package above it, which is not loaded
        return None


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Have modules in a folder found, behind all others."""
    # No cached bytecode: its check knows whole seconds only, and would miss an edit right after a run.
    cached, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()
    added = str(folder) not in sys.path
    if added:  # last, so that a user's `types.py` or `random.py` does not hide the standard library's
        sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.dont_write_bytecode = cached
        if added:
            sys.path.remove(str(folder))
