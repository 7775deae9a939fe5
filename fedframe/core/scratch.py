"""Typed scratch space: a key knows the type of its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")


@dataclass(frozen=True)
class Key(Generic[T_co]):
    """The name of something of type `T`: `SHIFT = Key[Tensor]("my_part/shift")`."""

    name: str


class Scratch:
    """A dictionary whose keys know the types of their values."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __setitem__(self, key: Key[T], value: T) -> None:
        if not isinstance(key, Key):
            raise TypeError(f"scratch takes a key, not {key!r}: write KEY = Key[Tensor]({str(key)!r}) and use that")
        self._values[key.name] = value

    def __getitem__(self, key: Key[T]) -> T:
        value: T = self._values[key.name]
        return value

    def __contains__(self, key: Key[Any]) -> bool:
        return key.name in self._values

    @overload
    def get(self, key: Key[T]) -> T | None: ...

    @overload
    def get(self, key: Key[T], default: D) -> T | D: ...

    def get(self, key: Key[T], default: D | None = None) -> T | D | None:
        """What lies behind a key, or the default."""
        value: T | D | None = self._values.get(key.name, default)
        return value

    def pop(self, key: Key[T]) -> T | None:
        """Take what lies behind a key away, if there is something."""
        value: T | None = self._values.pop(key.name, None)
        return value
