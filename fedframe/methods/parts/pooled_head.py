"""A ceiling for what is fitted after the last round: the classifier is trained on all clients' data in one place.

Dong et al., SphereFed, ECCV 2022, Table 4, "Sanity check": beside FFC and CCVR, which must do without the data, the
training sets of all clients are collected and the classifier alone is fine-tuned on them (frozen classifiers too). A
federation could not do so; it shows how much calibration leaves to be gained.

A ceiling must not depend on how patiently it is trained, so it is trained to convergence: squared error is solved by
least squares, with a bias where the classifier has one; cross-entropy is minimised in float64 by L-BFGS, from where
training left the classifier. Both have FFC's small ridge, without which cross-entropy of classes that can be told apart
has no minimum: `ridge` times the mean square of a feature, times the squared norm of the class vectors.

Differs from the paper in: it tries cross-entropy and squared error with several learning rates and prints the best
result on the test set. Here the loss is a setting, and there is no learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ALL_DATA, Message, Method, Part, Server
from fedframe.core.batches import plain_batches
from fedframe.errors import SettingError
from fedframe.methods.parts.ffc import least_squares
from fedframe.settings import Settings


@dataclass(frozen=True)
class PooledHead(Part):
    """The classifier, trained on the pooled training data after the last round; the backbone stays."""

    name: ClassVar[str] = "pooled_head"
    paper: ClassVar[str] = "Dong et al., SphereFed: Hyperspherical Federated Learning, ECCV 2022, Table 4"
    server_samples = ALL_DATA

    loss_by: Literal["mse", "ce"] = "mse"
    """The loss of the classifier: `mse`, solved by least squares, or `ce`, by L-BFGS."""
    ridge: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    """Strength of the ridge, in units of the mean square of a feature."""
    iterations: Annotated[int, Field(ge=1)] = 1000  # of L-BFGS at most; it ends when the gradient is almost zero
    """Most iterations of L-BFGS; it ends earlier when the gradient is close to zero."""

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
        net, device = server.net(), server.job.device
        with torch.no_grad():
            batches = plain_batches(source, source.train, rows, server.job.settings.eval_batch)
            features = torch.cat([server.job.method.embed(net, inputs.to(device)) for inputs in batches])
        labels = source.train.y[rows]
        before = {name: tensor.detach().cpu().double() for name, tensor in net.head.state_dict().items()}
        found = self.fit(features.cpu().double(), labels, before)
        for name, tensor in found.items():
            server.set_tensor(f"head.{name}", tensor)
        server.note(
            f"pooled_head: the classifier was trained on {len(rows):,} samples in one place, which no client sent."
        )

    def fit(self, features: Tensor, labels: Tensor, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The best classifier: `weight`, and `bias` if there was one `before`."""
        classes, bias = len(before["weight"]), "bias" in before
        z = torch.cat([features, features.new_ones(len(features), 1)], 1) if bias else features
        onehot = F.one_hot(labels, classes).to(z.dtype)
        if self.loss_by == "mse":
            best = least_squares(z.T @ z, z.T @ onehot, self.ridge).T
        else:
            pieces = [before["weight"], before["bias"][:, None]] if bias else [before["weight"]]
            best = self.minimise(z, labels, torch.cat(pieces, 1))
        return {"weight": best[:, :-1], "bias": best[:, -1]} if bias else {"weight": best}

    def minimise(self, z: Tensor, labels: Tensor, start: Tensor) -> Tensor:
        """The minimum of the cross-entropy with a ridge, from `start`, by L-BFGS."""
        weight = start.clone().requires_grad_()
        scale = self.ridge * float(z.square().mean())
        optimizer = torch.optim.LBFGS(
            [weight], max_iter=self.iterations, tolerance_grad=1e-8, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(z @ weight.T, labels) + scale * weight.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        return weight.detach()
