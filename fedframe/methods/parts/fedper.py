"""FedPer: the last layers stay on the client; the layers before them are shared and averaged.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019, Algorithm 1: in a round a client trains the
shared base layers W_B and its own personalisation layers W_P,k together by SGD; only W_B travels and is averaged.
The model of a client is W_B with its own W_P,k; there is no model without them, and so no generic score.

Differs from the paper in: every client's W_P starts from the same initial model. A layer is counted as a linear map or
convolution with the norms and scales that follow it, where the paper counts the blocks of its two nets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from fedframe.core import Method, Model, Part
from fedframe.errors import SettingError


def layers_of(model: nn.Module) -> list[list[str]]:
    """Names of the tensors of each layer that learns, from the input to the classifier."""
    layers: list[list[str]] = []
    for path, module in model.named_modules():
        weights = {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}
        statistics = [name for name, b in module.named_buffers(recurse=False) if b.is_floating_point()]
        if any(weight.ndim > 1 for weight in weights.values()) or (weights and not layers):
            layers.append([])
        if layers:  # norms and scales belong to the layer before them
            layers[-1] += [f"{path}.{name}" for name in (*weights, *statistics)]
    return layers


@dataclass(frozen=True)
class FedPer(Part):
    """The last layers that learn stay on the client."""

    name: ClassVar[str] = "fedper"
    paper: ClassVar[str] = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"

    layers: Annotated[int, Field(ge=0)] = 1  # K_P; 1: the classifier, or the last layer before one that is frozen
    """How many of the last trained layers stay on the client; 0 is FedAvg."""

    @property
    def shares_a_model(self) -> bool:
        """Only if no layer stays on the client."""
        return self.layers == 0

    def check_method(self, method: Method) -> None:
        """Refuse server stages: they fit a shared classifier, which no client here uses."""
        stage = method.optional_slot("server_stage")
        if stage is not None and self.layers:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'fedper' keeps the last layer on the client, so that what "
                f"{stage.name!r} fits on the server would be nobody's; leave one of them out."
            )

    def check_model(self, model: Model, clients: int) -> None:
        """Refuse to keep all layers private: something must be shared."""
        total = len(layers_of(model))
        if self.layers >= total:
            raise SettingError(
                f"fedper.layers = {self.layers} leaves nothing to share of the {total} layers that learn; use "
                f"{total - 1} or fewer, or the method 'local'."
            )

    def private(self, model: Model) -> Collection[str]:
        """W_P: the tensors of the last layers."""
        layers = layers_of(model)
        return [name for layer in layers[len(layers) - self.layers :] for name in layer]
