"""Most of what is used of Flower is undocumented: whatever has moved, or is called otherwise, is named here."""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedframe.network.flower.environment import pinned_version
from tests.test_docs import ROOT

flwr = pytest.importorskip("flwr")
FILES = sorted((ROOT / "fedframe" / "network" / "flower").glob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Module, name and local name of whatever a file takes from Flower, within functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            for alias in node.names:
                yield str(node.module), alias.name, alias.asname or alias.name


def find(module: str, name: str) -> Any:
    """The object, which may be a module of its own."""
    package = importlib.import_module(module)
    return getattr(package, name) if hasattr(package, name) else importlib.import_module(f"{module}.{name}")


def problems(source: str) -> list[str]:
    """What a file uses of Flower that is not there, or is called with other arguments than it takes."""
    tree, found, wrong = ast.parse(source), {}, []
    for module, name, local in imported(tree):
        try:
            found[local] = find(module, name)
        except (ImportError, AttributeError):
            wrong.append(f"{module}.{name} is gone")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in found:
            owner = found[node.value.id]
            if (inspect.ismodule(owner) or inspect.isclass(owner)) and node.attr not in {
                *dir(owner),
                *dir(type(owner)),
            }:
                wrong.append(f"{node.value.id}.{node.attr} is gone")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in found:
            wrong += [f"{node.func.id}: {reason}" for reason in refused(found[node.func.id], node)]
    return wrong


def refused(called: Any, call: ast.Call) -> list[str]:
    """Why an object would not take the arguments of a call."""
    names = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    if hasattr(called, "DESCRIPTOR"):  # a protobuf message: its fields
        return [f"has no field {name!r}" for name in names if name not in called.DESCRIPTOR.fields_by_name]
    if any(isinstance(argument, ast.Starred) for argument in call.args) or len(names) < len(call.keywords):
        return []  # `*` and `**`: known only when it runs
    try:
        inspect.signature(called).bind(*call.args, **dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_used_of_flower_is_where_it_was_and_takes_the_same_arguments(path: Path) -> None:
    wrong = problems(path.read_text())
    assert not wrong, f"flwr {flwr.__version__} is not what {path.name} was written for: " + "; ".join(wrong)


def test_files_that_use_flower_are_looked_at() -> None:
    assert sum(bool([*imported(ast.parse(path.read_text()))]) for path in FILES) >= 8


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("from flwr.app import NoSuchThing", "flwr.app.NoSuchThing is gone"),
        ("from flwr.no_such_module import thing", "flwr.no_such_module.thing is gone"),
        ("from flwr.common.constant import ErrorCode\nErrorCode.NO_SUCH_CODE", "ErrorCode.NO_SUCH_CODE is gone"),
        ("from flwr.app import Error\nError(code=0, no_such_argument=1)", "no_such_argument"),
        ("from flwr.proto.node_pb2 import Node\nNode(no_such_field=1)", "has no field 'no_such_field'"),
    ],
)
def test_what_has_moved_is_named(source: str, said: str) -> None:
    (wrong,) = problems(source)
    assert said in wrong


def test_what_the_node_changes_in_flower_is_there() -> None:
    """`supernode.py` and `superlink.py` replace these, which no import would miss."""
    start = importlib.import_module("flwr.supernode.start_client_internal")
    assert "initial_backoff" in start.pull_objects.__kwdefaults__
    assert hasattr(start, "time")
    assert "busy_timeout" in dict(importlib.import_module("flwr.supercore.sql_mixin").SQLITE_PRAGMAS)


def test_flower_is_pinned_in_one_place_and_that_is_what_was_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = [line for lines in extras.values() for line in lines if line.startswith("flwr") and "==" in line]
    assert pins == [f"flwr=={pinned_version()}"]
    assert pins[0] in (ROOT / "constraints.txt").read_text().splitlines()
