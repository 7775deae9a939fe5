"""FedBN: BatchNorm stays on the client, weights and statistics; everything else is shared and averaged.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021, Algorithm 1. Clients
whose inputs look different (other scanners, other cameras) normalise them each in its own way. There is no model
without a client's own BatchNorm, and so no generic score.

Differs from the paper in: clients are averaged by samples, as in all methods here, unless `--weighting uniform` asks
for the plain mean of its code.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedframe.core import Model, Part
from fedframe.core.model import has_batch_norm
from fedframe.errors import SettingError


@dataclass(frozen=True)
class FedBN(Part):
    """All tensors of BatchNorm layers stay on the client."""

    name: ClassVar[str] = "fedbn"
    paper: ClassVar[str] = (
        "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    )
    shares_a_model = False

    def check_model(self, model: Model, clients: int) -> None:
        """Refuse nets without BatchNorm: there would be nothing to keep."""
        if not has_batch_norm(model):
            raise SettingError(
                "fedbn keeps BatchNorm on the client, and this net has none; use one that has, e.g. model = resnet20."
            )

    def private(self, model: Model) -> Collection[str]:
        """Scale, shift, running mean and variance; the count of batches never travels anyway."""
        return [
            f"{path}.{name}"
            for path, module in model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            for name, tensor in module.state_dict().items()
            if tensor.is_floating_point()
        ]
