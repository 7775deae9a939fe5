"""Frozen classifiers without a bias: class vectors that are drawn once, saved with the model and never trained.

`orthonormal`: SphereFed's W, orthonormal rows (Dong et al., Sec. 3.2). `etf`: a simplex ETF times `scale` (Huang et
al.; Li et al., FedETF). `sse_c`: FedLoGe's sparse ETF (Xiao et al., Eqs. 2-5). `frozen_random`: FedBABU's random layer
(Oh et al.) and the other initialisations of FedLoGe's Table 9.

Differs from the papers in: see `models/frames.py` for how the sparse ETF is built; its length is 1, as FedLoGe's text
says, where its code used .1 (for a ResNet with BatchNorm and 500 rounds; without BatchNorm features then hardly learn:
.69 against .92 on a validation share of digits after 30 rounds; docs/methods/fedloge.md has more); Table 9 gives no
scale for its initialisations, ours is that of `torch.nn.init`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedframe.core import Model, Part, Server, State
from fedframe.models import frames


@dataclass(frozen=True)
class Orthonormal(Part):
    """Orthonormal class vectors; needs features of at least as many numbers as there are classes."""

    name: ClassVar[str] = "orthonormal"
    paper: ClassVar[str] = "Dong et al., SphereFed: Hyperspherical Federated Learning, ECCV 2022"

    def build_head(self, model: Model) -> None:
        """Draw the class vectors."""
        model.head = _frozen(frames.orthonormal(model.classes, model.dim, _generator()))


@dataclass(frozen=True)
class SimplexETF(Part):
    """Class vectors with the largest angles; needs features of at least one number less than there are classes."""

    name: ClassVar[str] = "etf"
    paper: ClassVar[str] = "Huang et al., Neural Collapse Inspired Federated Learning with Non-iid Data, 2023"

    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # Huang's beta
    """Length of the class vectors, beta."""

    def build_head(self, model: Model) -> None:
        """Draw the class vectors."""
        model.head = _frozen(self.scale * frames.simplex_etf(model.classes, model.dim, _generator()))


@dataclass(frozen=True)
class SparseETF(Part):
    """A simplex ETF with a share of zeros in every class vector."""

    name: ClassVar[str] = "sse_c"
    paper: ClassVar[str] = (
        "Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data, ICLR 2024"
    )

    sparsity: Annotated[float, Field(ge=0, lt=1)] = 0.6  # the paper's beta
    """Share of zeros in every class vector, beta."""
    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # the paper's gamma
    """Length of the class vectors, gamma."""
    best_effort: bool = False  # where there is no such ETF, take the nearest vectors that were found
    """Take the nearest class vectors that were found where so many zeros leave no ETF."""

    def build_head(self, model: Model) -> None:
        """Find the class vectors."""
        generator, norm = _generator(), self.norm
        frame = frames.sparse_etf(
            model.classes, model.dim, self.sparsity, generator, norm=norm, best_effort=self.best_effort
        )
        model.head = _frozen(frame)

    def server_state(self, server: Server) -> dict[str, State]:
        """None; but a run whose class vectors are no ETF says so, with their angles."""
        if not self.best_effort:
            return {}
        frame, classes = server.job.template.head.weight, server.job.template.classes
        assert isinstance(frame, Tensor)
        least, most = frames.angle_spread(frame)
        if most - least > 0.01:
            etf = math.degrees(math.acos(-1 / (classes - 1)))
            server.note(
                f"sse_c.sparsity = {self.sparsity:g} allows no ETF of {classes} classes: the angles between its class "
                f"vectors are {least:.2f} to {most:.2f} degrees, those of an ETF {etf:.2f}."
            )
        return {}


@dataclass(frozen=True)
class FrozenRandom(Part):
    """A random classifier that is never trained in rounds."""

    name: ClassVar[str] = "frozen_random"
    paper: ClassVar[str] = "Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, 2022"

    init: Literal["linear", "xavier", "gaussian", "uniform", "orthogonal", "kaiming"] = "linear"  # linear: torch's own
    """How the class vectors are drawn; `linear` draws them like torch's linear layer."""
    sparsity: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of zeros in every class vector."""
    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # None: as long as they come
    """Length of the class vectors; empty keeps the length they were drawn with."""
    bias: bool = False
    """Whether the classifier has a (frozen) bias."""

    def build_head(self, model: Model) -> None:
        """Draw the class vectors."""
        head = nn.Linear(model.dim, model.classes, bias=self.bias)
        generator, frame = _generator(), head.weight.detach()
        if self.init != "linear":
            frame = frames.random_frame(model.classes, model.dim, self.init, generator)
        head.weight = nn.Parameter(frames.sparsify(frame, self.sparsity, generator, self.norm))
        model.head = head.requires_grad_(False)


def _generator() -> torch.Generator:
    """A generator of its own, from the random state that the caller has seeded."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, ())))


def _frozen(frame: Tensor) -> nn.Linear:
    """A linear layer with these class vectors that does not learn."""
    classes, dim = frame.shape
    head = nn.Linear(dim, classes, bias=False)
    head.weight = nn.Parameter(frame, requires_grad=False)
    return head
