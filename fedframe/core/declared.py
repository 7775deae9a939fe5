"""What parts send and keep by name: a name that no part has declared is refused where it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import FrameType
from typing import Any, Generic, Self, TypeVar

from torch import Tensor

from fedframe.core.message import REPLY_NUMBERS, Number
from fedframe.core.part import Part

V = TypeVar("V")
OWN = ("model/", "optimizer/")  # what the loops themselves keep in a client's memory


@dataclass(eq=False)
class Declared(MutableMapping[str, V], Generic[V]):
    """A dictionary with the names that parts have declared. Reading a declared name that has no value is a KeyError."""

    verb: str  # what a part does that sets a value: "sends", "keeps"
    place: str  # where it lies, for the end of the sentence: " in server.state"
    advice: Callable[[str, Any], str]  # how to declare a name, given it and the value, which is None in reading
    names: Collection[str]  # that are declared; `ditto/*` stands for all that begin so
    values_by_name: dict[str, V] = field(default_factory=dict)
    plain: bool = False  # whether values are plain numbers, not tensors

    def __getitem__(self, name: str) -> V:
        if name not in self.values_by_name:
            self.check(name, "reads")
        return self.values_by_name[name]

    def __setitem__(self, name: str, value: V) -> None:
        if name not in self.names:
            self.check(name, self.verb, value)
        self.check_value(name, value)
        self.values_by_name[name] = value

    def __delitem__(self, name: str) -> None:
        del self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __ior__(self, others: Mapping[str, V]) -> Self:
        self.update(others)
        return self

    def check(self, name: str, verb: str, value: V | None = None) -> None:
        """Refuse a name that is not declared; the error has the line of the part that used it."""
        if not is_declared(name, self.names):
            raise NameError(
                f"{running_part(name)} {verb} {name!r}{self.place} without declaring it; "
                f"{did_you_mean(name, self.names)}{self.advice(name, value)}"
            )

    def check_value(self, name: str, value: V) -> None:
        """Refuse what is neither written to disk nor sent, while the line that set it is known."""
        if isinstance(value, Tensor) if not self.plain else type(value) in (int, float, str):
            return
        wanted = "a plain int or float" if self.plain else "a tensor"
        advice = "float(...)" if self.plain else "torch.as_tensor(...)"
        found = "None" if value is None else f"of type {type(value).__name__}"
        raise TypeError(
            f"{running_part(name)} {self.verb} {name!r}{self.place}, which must be {wanted} and is {found}; "
            f"write {advice}"
        )


def is_declared(name: str, names: Collection[str]) -> bool:
    """Whether a name is one of these, or begins as one that ends with a star."""
    return name in names or any(each.endswith("*") and name.startswith(each[:-1]) for each in names)


def renamed(part: Part, name: str) -> str:
    """A name as it would be if it began with that of its part."""
    return f"{part.name}/{name.rpartition('/')[2]}"


def did_you_mean(name: str, names: Collection[str]) -> str:
    """A question with the nearest declared name, if one is near."""
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {str(near[0])!r}? If not, " if near else ""


def current_part() -> Part | None:
    """The part whose hook is running, if one is."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        part = frame.f_locals.get("self")
        if isinstance(part, Part):
            return part
        frame = frame.f_back
    return None


def running_part(name: str) -> str:
    """The part whose hook is running, for the beginning of a sentence; in a merger, the one that a name begins with."""
    part = current_part()
    if part is not None:
        return f"The part {part.name!r}"
    prefix, slash, _ = name.partition("/")
    return f"The part {prefix!r}" if slash else "A part"


def reply_tensors(names: Collection[str]) -> Declared[Tensor]:
    """The tensors of a client's reply."""
    return Declared("sends", "", upload_advice, {"update", *names})


def reply_numbers(names: Collection[str]) -> Declared[Number]:
    """The plain numbers of a client's reply."""

    def advice(name: str, value: object) -> str:
        return f"add it to the part's 'uploads': {{{name!r}: Upload((), 'number')}}."

    return Declared("sends", " in context.numbers", advice, {*REPLY_NUMBERS, *names}, plain=True)


def client_memory(names: Collection[str], kept: dict[str, Tensor]) -> Declared[Tensor]:
    """What a client has kept of earlier rounds."""

    def advice(name: str, value: object) -> str:
        part = current_part()
        kept = tuple(str(each) for each in part.memory) if part is not None else ()  # strings, also where they are keys
        return f"write in its class: memory: ClassVar[tuple[str, ...]] = {(*kept, name)}."

    kept = {name: kept[name] for name in kept if name.startswith(OWN) or is_declared(name, names)}
    return Declared("keeps", " in a client's memory", advice, names, kept)


def upload_advice(name: str, value: Tensor | None) -> str:
    """How to declare a tensor that is sent."""
    shape = tuple(value.shape) if isinstance(value, Tensor) else "shape"
    return f"add it to the part's 'uploads': {{{name!r}: Upload({shape}, 'sum')}}."
