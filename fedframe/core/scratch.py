"""Keys that know the type of their value, and the scratch space that takes nothing else."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")


class Key(str, Generic[T_co]):
    """The name of something of type `T`: `SHIFT = Key[Tensor]("my_part/shift")`. It is a string wherever one is due:
    in a part's `memory`, in `uploads`, in `server.state`.
    """


class Scratch:
    """A dictionary whose keys know the types of their values."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __setitem__(self, key: Key[T], value: T) -> None:
        if not isinstance(key, Key):
            raise TypeError(f"scratch takes a key, not {key!r}: write KEY = Key[Tensor]({str(key)!r}) and use that")
        self._values[key] = value

    def __getitem__(self, key: Key[T]) -> T:
        value: T = self._values[key]
        return value

    def __contains__(self, key: Key[Any]) -> bool:
        return key in self._values

    @overload
    def get(self, key: Key[T]) -> T | None: ...

    @overload
    def get(self, key: Key[T], default: D) -> T | D: ...

    def get(self, key: Key[T], default: D | None = None) -> T | D | None:
        """What lies behind a key, or the default."""
        value: T | D | None = self._values.get(key, default)
        return value

    def pop(self, key: Key[T]) -> T | None:
        """Take what lies behind a key away, if there is something."""
        value: T | None = self._values.pop(key, None)
        return value
