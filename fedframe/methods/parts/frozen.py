"""Nothing learns in rounds: the net stays as it was built, and there is no classifier but one that is fitted later.

For methods that fit something on fixed features after the last round, of which there are then none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedframe.core import Method, Model, Part
from fedframe.data.target import TASKS, Task
from fedframe.errors import SettingError


class NoClassifier(nn.Module):
    """The same score for every class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, features: Tensor) -> Tensor:
        """Zeros."""
        return features.new_zeros(*features.shape[:-1], self.classes)


@dataclass(frozen=True)
class Frozen(Part):
    """A net that is not trained, without a classifier."""

    name: ClassVar[str] = "frozen"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS

    def check_method(self, method: Method) -> None:
        """Refuse a method in which nothing would ever be fitted."""
        if not method.parts_with("server_stage"):
            raise SettingError(
                f"{method.name!r} would learn nothing: 'frozen' trains no net and no classifier; join a part that fits "
                "one after the rounds, such as analytic."
            )

    def build(self, model: Model) -> None:
        """No weight of the net learns."""
        model.backbone.requires_grad_(False)

    def build_head(self, model: Model) -> None:
        """No classifier."""
        model.head = NoClassifier(model.classes)
