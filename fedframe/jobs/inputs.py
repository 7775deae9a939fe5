"""What a run's result depends on beside its settings: the user's own files and code, each with a digest.

Built-in methods, nets and data sets have none. A run keeps the record in `inputs.json`, and the folders of a
comparison's cells are named after it: results of a file that has changed since never pass for those of the new one.
"""

from __future__ import annotations

import contextlib
import dis
import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path, PurePath
from types import CodeType, EllipsisType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedframe.core.part import Part
from fedframe.data.images import listed_images
from fedframe.data.load import read_spec
from fedframe.errors import FedframeError
from fedframe.methods.recipes import PYTHON, find_recipes
from fedframe.models import NETS
from fedframe.settings import Settings
from fedframe.util.allowed_code import ZOOS
from fedframe.util.code_files import code_files, in_library
from fedframe.util.locate import is_generated

SMALL = 1 << 20  # bytes: a file up to this size is always read, because its time of change may be too coarse
NOT_OURS = ("fedframe.", "torch.")  # how the modules begin whose code is not the user's own
PLAIN = (int, float, complex, str, bytes, Enum, PurePath, range, slice, EllipsisType, torch.dtype, torch.device)


@dataclass(frozen=True)
class Input:
    """A file, a folder of images or a piece of Python code that a run depends on."""

    path: str  # absolute; of code that was given in Python its name, behind `python:`
    size: int
    mtime_ns: int
    blake2b: str


@dataclass
class InputFinder:
    """Finds the inputs of runs; what is asked for again is not looked at again."""

    known: Callable[[], Iterable[Input]] = tuple  # records of earlier runs, whose digests of large files still hold
    _found: dict[tuple[object, ...], tuple[Input, ...]] = field(default_factory=dict)
    _records: dict[tuple[str, int, int], str] | None = None

    def find(self, settings: Settings, net: object = None) -> tuple[Input, ...]:
        """The inputs of a run with these settings; `net` is one that was given in Python."""
        key = (settings.method, settings.data, settings.model, settings.weights, id(net))
        if key not in self._found:
            self._found[key] = tuple(sorted(self._look(settings, net), key=lambda each: each.path))
        return self._found[key]

    def _look(self, settings: Settings, net: object) -> Iterator[Input]:
        files = {file: None for place in own_places(settings) for file in code_files(place)}
        files |= dict.fromkeys(data_files(settings.data))
        files |= dict.fromkeys([Path(settings.weights)] if settings.weights else [])
        yield from (self._file(file) for file in files if file.is_file())
        folders = image_files(settings.data)
        if folders is not None:
            yield folders
        code = {name: kind for recipe in python_recipes(settings.method) for name, kind in part_classes(recipe)}
        code |= dict(net_classes(net))
        yield from (Input(name, 0, 0, code_digest(thing)) for name, thing in code.items())

    def _file(self, path: Path) -> Input:
        found = path.stat()
        key = (str(path), found.st_size, found.st_mtime_ns)
        if found.st_size <= SMALL:
            return Input(*key, file_digest(path))
        if self._records is None:
            self._records = {(each.path, each.size, each.mtime_ns): each.blake2b for each in self.known()}
        return Input(*key, self._records.get(key) or large_file_digest(*key))


def contents(inputs: Sequence[Input]) -> list[list[str]]:
    """What decides on a result: names and digests, not the times of change."""
    return [[each.path, each.blake2b] for each in inputs]


def changed_inputs(before: Sequence[Input], now: Sequence[Input]) -> list[str]:
    """The names of the inputs that are not what they were."""
    old, new = (dict(contents(inputs)) for inputs in (before, now))
    return [path for path in sorted({*old, *new}) if old.get(path) != new.get(path)]


# -- files -------------------------------------------------------------------------------------------------------------
def own_places(settings: Settings) -> list[str]:
    """The files and modules in which the user's own method and net are."""
    pieces = [piece.strip() for piece in settings.method.split("+") if not piece.strip().startswith(PYTHON)]
    named = [piece.rpartition(":")[0] for piece in (*pieces, settings.model)]
    return [place for place in named if place and place not in NETS and place.partition(":")[0] not in ZOOS]


def data_files(data: str) -> list[Path]:
    """The files that data of your own are read from, without images."""
    kind, colon, _ = data.partition(":")
    if colon and kind == "hf":
        folder = read_spec(data).path
        return sorted(folder.resolve().rglob("*")) if folder is not None and folder.is_dir() else []
    if not colon or kind not in ("npz", "csv", "parquet", "list"):
        return []
    request = read_spec(data)
    assert request.path is not None
    path = request.path.resolve()
    return [path, *([path.parent / Path(request.options["test"]).expanduser()] if "test" in request.options else [])]


def image_files(data: str) -> Input | None:
    """The images of a folder or a list as one input: a digest over names, sizes and times of change, not of pixels."""
    kind, _, _ = data.partition(":")
    if kind not in ("imagefolder", "list", "dicom"):
        return None
    request = read_spec(data)
    assert request.path is not None
    folder = request.path.resolve()
    if kind == "list":
        try:
            paths = listed_images(request)
        except FedframeError:  # loading the data says so
            return None
    else:
        paths = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    digest, total, newest = hashlib.blake2b(digest_size=16), 0, 0
    for path in sorted(paths):
        try:
            found = path.stat()
        except OSError:
            continue
        total, newest = total + found.st_size, max(newest, found.st_mtime_ns)
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return Input(f"images of {folder}" if kind == "list" else str(folder), total, newest, digest.hexdigest())


def file_digest(path: Path) -> str:
    """A digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@lru_cache
def large_file_digest(path: str, size: int, mtime_ns: int) -> str:
    """The same, computed once in a process for a size and a time of change."""
    return file_digest(Path(path))


# -- code that was given in Python -------------------------------------------------------------------------------------
def python_recipes(method: str) -> list[Sequence[Part]]:
    """The parts of those pieces of a method that were given as objects."""
    pieces = [piece.strip() for piece in method.split("+") if piece.strip().startswith(PYTHON)]
    return [recipe.parts for piece in pieces for recipe in find_recipes(piece)]


def part_classes(parts: Sequence[Part]) -> Iterator[tuple[str, type]]:
    """The user's own classes behind parts, by name."""
    for part in parts:
        for kind in type(part).__mro__:
            if is_own(kind):
                yield f"{PYTHON}{kind.__name__}", kind


def net_classes(net: object) -> Iterator[tuple[str, Any]]:
    """The user's own classes or function behind a net that was given in Python, by name."""
    if isinstance(net, nn.Module):
        kinds = {kind: None for module in net.modules() for kind in type(module).__mro__}
        yield from ((f"{PYTHON}{kind.__name__}", kind) for kind in kinds if is_own(kind))
    elif net is not None and not isinstance(net, str) and is_own(net):
        yield f"{PYTHON}{getattr(net, '__name__', type(net).__name__)}", net


def is_own(thing: object) -> bool:
    """Whether a class or function is the user's own."""
    module = f"{getattr(thing, '__module__', None) or 'builtins'}."
    return not module.startswith((*NOT_OURS, "builtins.", "abc.", "typing."))


def code_digest(thing: object) -> str:
    """A digest of what a function or class does, and of the values of globals and closures that it uses.

    It is taken of the bytecode, because a notebook has no file to look at.
    """
    digest = hashlib.blake2b(digest_size=16)
    for piece in code_pieces(thing, {}, getattr(thing, "__module__", "")):
        digest.update(piece.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


def code_pieces(thing: object, seen: dict[int, object], home: str) -> Iterator[str]:
    """The texts that make up code or a value, the same in every process, with all of the user's own that it uses.

    Of an object that is none of the user's and no plain value, it is the type alone. `seen` keeps what was looked at,
    so that cycles end and no `id` is given again; `home` is a module that counts as the user's own, even if installed.
    """
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    if thing is None or isinstance(thing, PLAIN):
        yield repr(thing)
    elif isinstance(thing, np.generic | np.ndarray | Tensor):
        yield from array_pieces(thing, seen, home)
    elif isinstance(thing, CodeType):
        yield thing.co_code.hex()
        yield from code_pieces((thing.co_names, thing.co_varnames), seen, home)
        for constant in thing.co_consts:
            yield from code_pieces(constant, seen, home)
    elif isinstance(thing, tuple):  # not kept in `seen`: which of equal constants are one object differs by process
        yield f"{type(thing).__qualname__} of {len(thing)}"
        for value in thing:
            yield from code_pieces(value, seen, home)
    elif isinstance(thing, frozenset | set):
        yield f"set of {len(thing)}"
        yield from sorted("\0".join(code_pieces(value, dict(seen), home)) for value in thing)
    elif id(thing) not in seen:
        seen[id(thing)] = thing
        yield type(thing).__qualname__
        for piece in inner_things(thing, home):
            yield from code_pieces(piece, seen, home)


def inner_things(thing: object, home: str) -> Iterator[object]:
    """What a function, a class, a container or an object of the user's is made of and uses."""
    if isinstance(thing, FunctionType | type) and thing.__module__ != home and is_library(thing.__module__):
        yield f"{thing.__module__}.{thing.__qualname__}"
    elif isinstance(thing, FunctionType):
        if not is_generated(thing.__code__):
            yield (thing.__code__, thing.__defaults__, thing.__kwdefaults__)
            yield from used_values(thing)
    elif isinstance(thing, type):
        for name, value in sorted(vars(thing).items()):
            if not (name.startswith("__") and not isinstance(value, FunctionType)):
                yield (name, value)
        yield tuple(base for base in thing.__bases__ if is_own(base))
        yield [each.default_factory for each in vars(thing).get("__dataclass_fields__", {}).values()]
    elif isinstance(thing, property):
        yield (thing.fget, thing.fset)
    elif isinstance(thing, MethodType):
        yield (thing.__func__, thing.__self__)
    elif isinstance(thing, partial):
        yield (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, Mapping):
        yield from thing.items()
    elif isinstance(thing, list | deque):
        yield from thing
    elif isinstance(thing, ModuleType):
        yield thing.__name__
    elif isinstance(thing, nn.Module):
        yield (type(thing), [type(module) for module in thing.modules()], dict(thing.state_dict()))
    elif isinstance(thing, SimpleNamespace) or not is_library(type(thing).__module__):
        yield (type(thing), vars(thing) if hasattr(thing, "__dict__") else None)
    else:
        yield getattr(thing, "__wrapped__", None)  # of a cached function, which is no function


def used_values(function: FunctionType) -> Iterator[object]:
    """The globals and closure cells that a function reads, by name, and what it reads of the user's own modules."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell may still be empty
            yield (name, cell.cell_contents)
    codes = [function.__code__]
    for code in codes:  # it grows: functions within the function
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    loads = {"LOAD_GLOBAL", "LOAD_NAME"}
    read = {step.argval: None for code in codes for step in dis.get_instructions(code) if step.opname in loads}
    for name in read:
        value = function.__globals__.get(name)
        yield (name, value)
        if isinstance(value, ModuleType) and not is_library(value.__name__):
            attributes = dict.fromkeys(name for code in codes for name in code.co_names if name in vars(value))
            yield from ((name, vars(value)[name]) for name in attributes)


def is_library(module: str | None) -> bool:
    """Whether a module belongs to Fedframe, to Python or to an installed package; a notebook's does not."""
    name = module or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    if f"{name}.".startswith(NOT_OURS) or file is None:
        return f"{name}.".startswith(NOT_OURS) or name.partition(".")[0] in sys.stdlib_module_names
    return in_library(Path(file))


def array_pieces(array: np.generic | np.ndarray | Tensor, seen: dict[int, object], home: str) -> Iterator[str]:
    """The type, shape and content of an array or a tensor."""
    yield f"{type(array).__qualname__} {array.dtype} {tuple(array.shape)}"
    if isinstance(array, Tensor):
        if array.layout == torch.strided and not array.is_quantized and not array.is_meta:
            plain = array.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            yield hashlib.blake2b(plain.numpy().tobytes()).hexdigest()
    elif array.dtype.hasobject:
        yield from code_pieces(array.tolist(), seen, home)
    else:
        yield hashlib.blake2b(array.tobytes()).hexdigest()
