"""Fine-tuning: a client makes the shared model its own by training it a little on its own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedframe.core import ClientContext, HeadStage, Method, Model, Part
from fedframe.data.target import TASKS, Task


@dataclass(frozen=True)
class FineTune(Part):
    """A few epochs with the method's loss, without its penalties and corrections, of the model or its classifier."""

    name: ClassVar[str] = "fine_tune"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS

    epochs: Annotated[int, Field(ge=0)] = 5
    """Epochs of fine-tuning after the rounds; 0 makes the personal model the shared one."""
    lr: Annotated[float, Field(gt=0)] | None = None  # None: the run's lr
    """Learning rate of fine-tuning; empty means the run's `lr`."""
    what: Literal["all", "head", "everything"] = "all"  # everything: also what is frozen in rounds
    """What is trained: `all` that is trained in rounds, the `head` alone, or `everything`, frozen layers included."""

    def personalise(self, context: ClientContext) -> None:
        """Train on the client's own data, unless `head_stages` does."""
        if self.head_stages(context.job.method, context.model):
            return
        if self.lr is not None:
            context.lr = self.lr
        choices = {"all": None, "head": lambda name: name.startswith("head."), "everything": lambda name: True}
        # A classifier that predicts instead of the head learns through its own penalty, which must count here.
        context.fit(self.epochs, only=choices[self.what], parts=context.job.method.parts_with("predict"))

    def head_stages(self, method: Method, model: Model) -> Sequence[HeadStage]:
        """The classifier alone."""
        if self.what != "head" or method.parts_with("predict"):
            return ()
        return (HeadStage(self.epochs, ("head.",), self.lr),)
