"""FedRep: in a round a client first trains its own head on the body it got, then the body under that head.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, Algorithm 1:
    for tau epochs   h_k  <- h_k  - lr grad_h   l(h_k, phi)       the body phi as it came
    then             phi_k <- phi_k - lr grad_phi l(h_k, phi_k)   the head as it is now
    server           phi <- mean of phi_k
What counts as head is what stays on the client: the part `fedper` says which layers.

Differs from the paper in: bodies are averaged by samples, as in all methods here, unless `--weighting uniform` asks for
the paper's plain mean. Every head starts from the same initial model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedframe.core import ClientContext, Part
from fedframe.errors import SettingError
from fedframe.settings import Settings


@dataclass(frozen=True)
class FedRep(Part):
    """The last few epochs of a round train the shared layers, the epochs before them the private ones."""

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = (
        "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021"
    )

    body_epochs: Annotated[int, Field(ge=1)] = 1
    """How many of a round's epochs, the last ones, train the body."""

    def check_settings(self, settings: Settings) -> None:
        """Refuse settings that leave no epochs for the heads or for the body."""
        if settings.steps is not None:
            raise SettingError(
                f"fedrep trains heads and body in epochs, so that steps = {settings.steps} cannot be used; use epochs."
            )
        if self.body_epochs >= settings.epochs:
            raise SettingError(
                f"fedrep.body_epochs = {self.body_epochs} leaves no epoch for the heads with epochs = "
                f"{settings.epochs}; use epochs = {self.body_epochs + 1} or more."
            )

    def begin_epoch(self, context: ClientContext, epoch: int) -> None:
        """Train only the private heads, or only the shared weights."""
        private = {*context.job.roles.private} & context.named.keys()
        if not private:  # fedper.layers = 0: all is shared
            return
        heads = context.job.settings.epochs - self.body_epochs
        for name, weight in context.named.items():
            weight.requires_grad_((name in private) == (epoch < heads))  # Algorithm 1: h_k, then phi_k
        if epoch == heads:
            context.steps = 0  # of the steps so far none has moved what is sent; normalised averaging counts those
