"""Ditto: beside the shared model each client trains a model of its own, held near the shared one.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1. With w the
server's model of the round:
    h_k(v_k; w) = F_k(v_k) + lambda/2 ||v_k - w||^2                     (Eq. 2)
    v_k <- v_k - lr (grad F_k(v_k) + lambda (v_k - w))                  in every local step
The shared side is untouched, whatever trains it: `ditto` alone is FedAvg's, bit for bit. With lambda 0 the own model is
trained on the client's data alone; a very large lambda is the shared model.

Differs from the paper in: the own model takes its steps after the shared one's, on batches in another order, where the
authors' code takes both steps on the same batch. lambda is one number, not chosen by each client on validation data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedframe.core import ClientContext, Part
from fedframe.core.model import copy_tensors, load_tensors
from fedframe.errors import SettingError
from fedframe.methods.parts.prox import Prox
from fedframe.settings import Settings


@dataclass(frozen=True)
class Ditto(Part):
    """A personal model per client, with a pull of strength lam towards the shared one."""

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"
    memory: ClassVar[tuple[str, ...]] = ("ditto/*",)
    compares_with_server: ClassVar[bool] = True
    rank: ClassVar[int] = 100  # trains another model when the others have seen the round's

    lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Strength of the pull towards the shared model, lambda; 0 trains an own model alone."""
    epochs: Annotated[int, Field(ge=1)] | None = None  # of the own model in a round; None: as many as the shared one's
    """Epochs of the own model in a round; empty means as many as the shared model's."""

    def check_settings(self, settings: Settings) -> None:
        """Refuse a pull that is too strong for the step length: the own model would diverge."""
        check_pull("ditto", self.lam, settings)

    def finish(self, context: ClientContext) -> None:
        """Train the own model for a round; it starts from the initial one."""
        settings = context.job.settings
        if not context.load_model("ditto"):
            load_tensors(context.model, copy_tensors(context.job.template, context.job.roles.changing))
        if self.epochs is not None:
            context.fit(self.epochs, parts=pulled(context, self.lam))
        else:
            context.fit(settings.epochs, settings.steps, parts=pulled(context, self.lam))
        context.keep_model("ditto")

    def load_personal(self, context: ClientContext) -> None:
        """Load v_k; a client that was in no round trains it from the shared model."""
        if not context.load_model("ditto") and context.kind == "personalise":
            context.train_missed_rounds(pulled(context, self.lam))


def check_pull(part: str, strength: float, settings: Settings) -> None:
    """Refuse a pull for which SGD along lambda (v - w) alone would diverge: lr lambda must be below 2."""
    if settings.optimizer == "sgd" and settings.lr * strength >= 2:
        raise SettingError(
            f"{part}.lam = {strength:g} is too strong a pull for lr = {settings.lr:g}: the model would be thrown ever "
            f"further; use {part}.lam = {1 / settings.lr:g} or lr = {1 / strength:.2g}."
        )


def pulled(context: ClientContext, strength: float) -> Sequence[Part]:
    """The parts whose hooks count when an own model is trained near the server's: the pull, which is FedProx's, and a
    classifier that predicts instead of the head. The method's corrections are about the shared model.
    """
    pull = Prox(strength)  # Eq. 2: its second term
    pull.begin(context)
    return (*context.job.method.parts_with("predict"), pull)
