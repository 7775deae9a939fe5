"""A ceiling for what is fitted after the last round: the classifier is trained on all clients' data in one place.

Dong et al., SphereFed, ECCV 2022, Table 4, "Sanity check": beside FFC and CCVR, which must do without the data, the
training sets of all clients are collected and the classifier alone is fine-tuned on them, from where training left it
(frozen classifiers too). A federation could not do so; it shows how much calibration leaves to be gained.

Differs from the paper in: it tries cross-entropy and squared error with several learning rates and prints the best
result on the test set. Here loss and learning rate are settings; squared error is that of FFC's closed form.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ALL_DATA, Message, Method, Part, Server
from fedframe.core.batches import plain_batches
from fedframe.core.optimizers import FusedSGD
from fedframe.errors import SettingError
from fedframe.settings import Settings

MOMENTUM = 0.9  # of the SGD on the server


@dataclass(frozen=True)
class PooledHead(Part):
    """The classifier, trained on the pooled training data after the last round; the backbone stays."""

    name: ClassVar[str] = "pooled_head"
    paper: ClassVar[str] = "Dong et al., SphereFed: Hyperspherical Federated Learning, ECCV 2022, Table 4"
    server_samples = ALL_DATA

    loss_by: Literal["mse", "ce"] = "mse"
    epochs: Annotated[int, Field(ge=1)] = 10
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5  # the mean over classes makes its gradients small
    batch: Annotated[int, Field(ge=1)] = 64

    def check_method(self, method: Method) -> None:
        """Refuse methods in which another classifier predicts, or without a shared model."""
        for other in method.parts_with("predict"):
            raise SettingError(
                f"{method.name!r} cannot be combined: {other.name!r} predicts with a classifier of its own, so that "
                "'pooled_head' would have no effect; leave one of them out."
            )
        if not method.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'pooled_head' needs a shared model that predicts, and here a "
                "part of it stays on the clients; leave it out."
            )

    def check_settings(self, settings: Settings) -> None:
        """Refuse private BatchNorm statistics for the same reason."""
        if settings.buffers == "private":
            raise SettingError("pooled_head needs a shared model that predicts: buffers = 'private'; use average.")

    def server_stage(self, server: Server, replies: Iterable[Message]) -> None:
        """Train the classifier on all data, which only a simulation has here; no client sends anything."""
        source, rows = server.job.federation.source, server.job.federation.train.values
        net, device = server.net(), server.job.settings.device
        with torch.no_grad():
            batches = plain_batches(source, source.train, rows, server.job.settings.eval_batch)
            features = torch.cat([server.job.method.embed(net, inputs.to(device)) for inputs in batches])
        head = copy.deepcopy(net.head).requires_grad_()  # also one that is frozen in rounds
        self.train(head, features, source.train.y[rows].to(device), server.generator("pooled_head"))
        for name, tensor in head.state_dict().items():
            server.set_tensor(f"head.{name}", tensor.cpu())
        server.note(
            f"pooled_head: the classifier was trained on {len(rows):,} samples in one place, which no client sent."
        )

    def train(self, head: torch.nn.Module, features: Tensor, labels: Tensor, generator: torch.Generator) -> None:
        """SGD with momentum."""
        optimizer = FusedSGD(list(head.parameters()), self.lr, MOMENTUM, nesterov=False, weight_decay=0.0)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(labels), generator=generator).split(self.batch):  # type: ignore[no-untyped-call]
                logits = head(features[rows])
                optimizer.zero_grad()
                if self.loss_by == "ce":
                    loss = F.cross_entropy(logits, labels[rows])
                else:
                    loss = F.mse_loss(logits, F.one_hot(labels[rows], logits.shape[1]).to(logits.dtype))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
