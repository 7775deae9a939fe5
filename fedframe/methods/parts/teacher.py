"""The server's model as a round began, as a net of its own: for parts that hold local training against it."""

from __future__ import annotations

from fedframe.core import ClientContext, Key, Model
from fedframe.core.layout import named_tensors
from fedframe.core.model import load_tensors

TEACHER = Key[Model]("teacher/net")  # one for each process


def load_teacher(context: ClientContext) -> None:
    """Copy the model as it starts, the client's private tensors included, in evaluation mode."""
    if TEACHER not in context.runtime.tools:
        context.runtime.tools[TEACHER] = context.job.fresh_model().eval().requires_grad_(False)
    load_tensors(context.runtime.tools[TEACHER], named_tensors(context.model))


def teacher(context: ClientContext) -> Model:
    """The net that `load_teacher` has loaded."""
    return context.runtime.tools[TEACHER]
