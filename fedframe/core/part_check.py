"""What is wrong with a part's class, found before it trains: a hook that is never called is worse than an error."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from types import CodeType, FunctionType
from typing import Any

from fedframe.core.part import ATTRIBUTES, HOOKS, ON_SERVER, PROPERTIES, Part, overrides
from fedframe.errors import SettingError

KNOWN = (*HOOKS, *PROPERTIES, *ATTRIBUTES)
# Names of earlier versions, and what has taken their place.
RENAMED = {
    "absorb": "declare the tensor in 'uploads' and read server.total(name) in 'after_merge'",
    "after_step": "fill 'step' with context.compute_gradient() and context.apply_gradient()",
    "broadcast": "return State(tensor, broadcast=True) from 'server_state'",
    "by_sample": "override the property 'samplewise'",
    "check": "call it 'check_settings'",
    "choose": "call it 'select_clients'",
    "claims": "leave it out: the hooks that a part overrides say which slots it fills",
    "conclude": "call it 'server_stage'",
    "finish_personal": "give the last of 'head_stages' an 'after'",
    "fits": "call it 'check_method'",
    "own": "call it 'load_personal'",
    "pools_data": "override the property 'server_samples' to return ALL_DATA",
    "remembers": "name what is kept: memory: ClassVar[tuple[str, ...]] = ('my_part/name',)",
    "reserve": "override the property 'server_samples'",
    "statistics_shapes": "declare them in 'uploads' with when='statistics'",
    "sums": "leave it out: 'uploads' says how each tensor is aggregated",
}


def check_part(kind: type[Part]) -> None:
    """Refuse a class with anything that would be ignored."""
    where = class_location(kind)
    for base in kind.__mro__[kind.__mro__.index(Part) + 1 :]:
        for name in vars(base):
            if name in HOOKS:
                late = f"{base.__name__}.{name}"
                raise SettingError(f"{where}: {late} comes after Part and would be ignored; put {base.__name__} first.")
    settings = {field.name for field in dataclasses.fields(kind)}
    for name, value in own_names(kind):
        if name in RENAMED and name not in settings:
            raise SettingError(f"{where}.{name} is not used any more; {RENAMED[name]}.")
        if name in HOOKS:
            if name in settings or not callable(getattr(kind, name)):
                raise SettingError(f"{where}.{name} has the name of a hook and is none; call it otherwise.")
            check_signature(kind, name, where)
        elif name not in (*settings, *PROPERTIES, *ATTRIBUTES) and not is_used(kind, name):
            near = get_close_matches(name, KNOWN, n=1, cutoff=0.6)
            if is_method(value) or get_close_matches(name, KNOWN, n=1, cutoff=0.8):
                hint = f"did you mean {near[0]!r}?" if near else "docs/own-method.md lists the hooks."
                raise SettingError(
                    f"{where}.{name} is no hook of a part, and nothing in the file uses it; {hint} (The name of a "
                    "helper starts with an underscore.)"
                )
    check_attributes(kind, where)
    if not any(overrides(kind, hook) for hook in HOOKS):
        outside = [name for name in HOOKS if is_method(vars(sys.modules.get(kind.__module__, kind)).get(name))]
        hint = f"indent the function {outside[0]!r} into the class" if outside else "docs/own-method.md lists them"
        raise SettingError(f"{where} overrides no hook, so that it would do nothing; {hint}.")
    if overrides(kind, "server_step") and overrides(kind, "merger"):
        raise SettingError(f"{where} overrides 'server_step' and 'merger', of which a method uses one; leave one out.")
    if overrides(kind, "furthest") and not any(overrides(kind, hook) for hook in ON_SERVER):
        raise SettingError(f"{where}.furthest would never be called: override one of {', '.join(ON_SERVER)} too.")
    for hook, needed in (
        ("statistics", "server_stage"),
        ("stages", "server_stage"),
        ("row_losses", "loss"),
        ("round_losses", "loss"),
        ("probabilities", "loss"),
    ):
        if overrides(kind, hook) and not overrides(kind, needed):
            raise SettingError(f"{where}.{hook} would never be called: override '{needed}' too.")


def check_attributes(kind: type[Part], where: str) -> None:
    """Refuse a setting that has no type, and a memory that is a single string."""
    if isinstance(kind.memory, str):
        raise SettingError(f"{where}.memory is a string, not a tuple; write memory = ({str(kind.memory)!r},).")
    for each in kind.__mro__[: kind.__mro__.index(Part)]:
        typed = {name for base in each.__mro__ for name in inspect.get_annotations(base)}
        for name, value in vars(each).items():
            known = name in (*typed, *HOOKS, *PROPERTIES, *ATTRIBUTES)
            if isinstance(value, int | float | str) and not known and not name.startswith("_"):
                type_name = type(value).__name__
                raise SettingError(
                    f"{where}.{name} has no type and is no setting; write {name}: {type_name} = {value!r}, or for a "
                    f"constant {name}: ClassVar[{type_name}] = {value!r}."
                )


def class_location(kind: type[Part]) -> str:
    """Where a class is defined, for a sentence: `mine.py: MyPart`."""
    try:
        return f"{inspect.getfile(kind)}: {kind.__name__}"
    except (OSError, TypeError):  # of a notebook
        return kind.__name__


def own_names(kind: type[Part]) -> Iterator[tuple[str, Any]]:
    """Public names that a class and its bases below `Part` define."""
    for each in kind.__mro__:
        if each is Part:
            return
        yield from ((name, value) for name, value in vars(each).items() if not name.startswith("_"))


def is_method(value: object) -> bool:
    """Whether a class attribute is called as a method, or read like one."""
    return isinstance(value, FunctionType | classmethod | staticmethod | property)


def check_signature(kind: type[Part], hook: str, where: str) -> None:
    """Refuse a hook that cannot be called as the loops call it."""
    wanted = [name for name in inspect.signature(getattr(Part, hook)).parameters if name != "self"]
    try:
        inspect.signature(getattr(kind, hook)).bind(None, *wanted)
    except TypeError:
        raise SettingError(f"{where}.{hook} must take (self, {', '.join(wanted)}).") from None
    own = [name for name in inspect.signature(getattr(kind, hook)).parameters if name in wanted]
    if own != [name for name in wanted if name in own]:
        raise SettingError(f"{where}.{hook} has its parameters in another order; it gets (self, {', '.join(wanted)}).")
    function = inspect.unwrap(getattr(kind, hook))
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise SettingError(f"{where}.{hook} has a yield or an async, so that its body would not run; leave that out.")


def is_used(kind: type[Part], name: str) -> bool:
    """Whether other code in the classes' files takes the name from a part: `self.name`, `part.name`, `Mine.name`."""
    classes = kind.__mro__[: kind.__mro__.index(Part)]
    owners = {"self", "cls", "part", *(each.__name__ for each in classes)}
    own = {id(code) for each in classes for code in codes_of(vars(each).get(name))}
    for each in classes:
        for value in (*vars(each).values(), *vars(sys.modules.get(each.__module__, each)).values()):
            if getattr(value, "__module__", each.__module__) != each.__module__:
                continue
            for code in codes_of(value):
                if id(code) not in own and takes(code, owners, name):
                    return True
    return False


def takes(code: CodeType, owners: set[str], name: str) -> bool:
    """Whether code reads an attribute of one of these variables, or of one of their attributes of these names."""
    before = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval == name and before in owners:
            return True
        before = step.argval if step.opname.startswith("LOAD") else None
    return False


def codes_of(value: object) -> Iterator[CodeType]:
    """The code objects of a function or of a class's functions, nested ones included."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    if isinstance(value, FunctionType):
        waiting = [value.__code__]
        while waiting:
            code = waiting.pop()
            yield code
            waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    elif isinstance(value, type):
        for each in vars(value).values():
            if isinstance(each, FunctionType | property | classmethod | staticmethod):
                yield from codes_of(each)
