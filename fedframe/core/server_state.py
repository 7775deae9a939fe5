"""What parts keep on the server: each tensor under the name and in the shape that its part has declared."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedframe.core.declared import Declared, running_part
from fedframe.core.message import all_finite
from fedframe.core.part import Part, State
from fedframe.errors import DivergedError, SettingError


class StateTensors(Declared[Tensor]):
    """`server.state`: a value that no later round could use is refused where it is set, before it is checkpointed."""

    def __init__(self) -> None:
        super().__init__("keeps", " in server.state", state_advice, [])
        self.owners: dict[str, Part] = {}
        self.shapes: dict[str, torch.Size] = {}

    def declare(self, part: Part, states: Mapping[str, State]) -> None:
        """Take what a part's `server_state` has returned."""
        for name, state in states.items():
            if name in self.owners:
                other = self.owners[name].name
                raise SettingError(f"The part {part.name!r} keeps {name!r} in server.state, and so does {other!r}.")
            self.owners[name], self.shapes[name] = part, state.tensor.shape
            self.names = [*self.names, name]
            self[name] = state.tensor

    def check_value(self, name: str, value: Tensor) -> None:
        """Refuse another shape, and NaN or infinite values; a FloatingPointError may be one of training."""
        super().check_value(name, value)
        if name not in self.shapes:
            return
        problem = self.problem(name, value)
        if problem is not None:
            kind = ValueError if value.shape != self.shapes[name] else FloatingPointError
            raise kind(f"{running_part(name)} keeps {name!r}{self.place} {problem}")

    def problem(self, name: str, value: Tensor) -> str | None:
        """What is wrong with a value, for the end of a sentence."""
        if value.shape != self.shapes[name]:
            return f"with shape {tuple(value.shape)}, and its 'server_state' declares {tuple(self.shapes[name])}"
        if value.is_floating_point() and not all_finite(value):
            return "with NaN or infinite values"
        return None

    def check_all(self, round: int) -> None:
        """Look at all of it after a round: tensors may have been changed in place."""
        for name, value in self.items():
            problem = self.problem(name, value) if name in self.shapes else None
            if problem is not None:
                part = self.owners[name]
                raise DivergedError(f"Round {round}: the part {part.name!r} keeps {name!r}{self.place} {problem}.")

    def usable(self, name: str, value: Tensor) -> bool:
        """Whether a value of an earlier session can still be used: the code may have changed since."""
        return name not in self.shapes or self.problem(name, value) is None


def state_advice(name: str, value: object) -> str:
    """How to declare a tensor that is kept."""
    return f"return it from the part's 'server_state': {{{name!r}: State(...)}}."
