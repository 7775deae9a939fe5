"""FedOpt: the server takes the mean update as a gradient and gives it to an optimiser of its own.

Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2; FedAvgM: Hsu et al., Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification, 2019. With D the (weighted) mean of the updates,
m = 0 and v = tau^2 in the beginning:
    m <- beta1 m + (1 - beta1) D
    v <- v + D^2                                    (FedAdagrad)
    v <- beta2 v + (1 - beta2) D^2                  (FedAdam)
    v <- v - (1 - beta2) D^2 sign(v - D^2)          (FedYogi)
    w <- w + lr m / (sqrt(v) + tau)
and for FedAvgM m <- momentum m + D, w <- w + lr m. There is no bias correction, as in the paper. State is in float64.

Defaults: beta1 .9, beta2 .99 and tau 1e-3 are those of Flower's FedAdam and FedYogi (`flwr.serverapp.strategy`, made
after the paper; its older `flwr.server` interface has tau 1e-9 for FedAdam) and of its replication of the paper's
CIFAR-10 experiment with FedAdam. FedAdagrad has no momentum there either. There is no such source for lr: Flower has .1
for FedAdam and FedAdagrad and .01 for FedYogi, its replication .01 for FedAdam and .1 (tau 1e-2) for FedAdagrad, and 1
with momentum 0, which is FedAvg, for FedAvgM.

Differs from the paper in: the paper tunes lr per task, on a grid. Ours (FedAvgM 1, FedAdagrad .01, FedAdam and FedYogi
.03) are those of a small grid that learnt well on held-out training data of both `digits` and `fashion-mnist` (20
clients, dirichlet:0.1); .01 to .1 is worth a try on other data. Buffers (BatchNorm statistics) are averaged, not
optimised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import Key, Part, RunningMean, Server, State

if TYPE_CHECKING:
    from fedframe.core.job import Job

MOMENTUM = Key[Tensor]("fedavgm/m")
Decay = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class ServerOptimizer(Part):
    """What the four have in common: a mean, state of the model's size, and a rule from the two to a step."""

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """The optimiser's step along the mean update."""
        return self.move(updates.into_mean(), server.state)

    def move(self, mean: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """The server's step for a mean update; changes the part's tensors in `state`."""
        raise NotImplementedError


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """Momentum on the server. With momentum 0 and lr 1 it is FedAvg."""

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = "Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019"

    lr: Positive = 1.0
    """The server's learning rate."""
    momentum: Decay = 0.9
    """The server's momentum, beta; 0 with lr 1 is FedAvg."""

    def server_state(self, server: Server) -> dict[str, State]:
        """The momentum."""
        return {MOMENTUM: State(torch.zeros(server.layout.trainable, dtype=torch.float64))}

    def move(self, mean: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """m <- momentum m + D; lr m."""
        state[MOMENTUM] = self.momentum * state[MOMENTUM] + mean
        return self.lr * state[MOMENTUM]

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """lr (1 + momentum + momentum^2 + ...) times as far as the longest update."""
        return {"model": self.lr * longest["update"] / (1 - self.momentum)}


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """A step length of its own for every weight, from the squares of past updates."""

    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    lr: Positive = 0.03
    """The server's learning rate."""
    beta1: Decay = 0.9
    """The server's momentum."""
    tau: Positive = 1e-3  # the smaller, the more alike the steps of all weights
    """Added to the root of the mean square: the larger, the more equal the step lengths of all weights."""

    def server_state(self, server: Server) -> dict[str, State]:
        """First and second moments."""
        zero = torch.zeros(server.layout.trainable, dtype=torch.float64)
        m, v = self.moments
        return {m: State(zero), v: State(zero + self.tau**2)}  # Algorithm 2: v_-1 >= tau^2

    @property
    def moments(self) -> tuple[Key[Tensor], Key[Tensor]]:
        """The keys of m and v, by the name of the optimiser."""
        return Key(f"{self.name}/m"), Key(f"{self.name}/v")

    def move(self, mean: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Algorithm 2, from the moments to the step."""
        m, v = self.moments
        state[m] = self.beta1 * state[m] + (1 - self.beta1) * mean  # Algorithm 2: m_t
        state[v] = self.second(state[v], mean * mean)  # Algorithm 2: v_t
        return self.lr * state[m] / (state[v].sqrt() + self.tau)  # Algorithm 2: x_{t+1}

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """lr |m| / sqrt(v) is bounded for each weight, whatever the updates are.

        v is at least (1 - b) b^age times each past square (Yogi's: b for 1 - b, if that is less), so that |m| is at
        most (1 - beta1) sqrt(v / (1 - b)) times the sum of (beta1 / sqrt(b))^age. Adagrad's v has all squares.
        """
        b, most = self.fading, 1.0
        if b == 0:
            return None
        if b < 1:
            total = sum((self.beta1 / math.sqrt(b)) ** age for age in range(round))
            most = (1 - self.beta1) / math.sqrt(min(b, 1 - b)) * total
        return {"model": self.lr * most * math.sqrt(job.roles.layout.trainable)}

    @property
    def fading(self) -> float:
        """The share b of the second moment that is left after a round at least; 1: all of it."""
        return 1.0

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The new second moment."""
        raise NotImplementedError


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """The sum of all squares: steps become shorter and shorter. Without momentum, as in the paper's experiments."""

    name: ClassVar[str] = "fedadagrad"

    lr: Positive = 0.01
    """The server's learning rate."""
    beta1: Decay = 0.0
    """The server's momentum."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """v + D^2."""
        return v + square


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """A fading mean of the squares."""

    name: ClassVar[str] = "fedadam"

    beta2: Decay = 0.99
    """How slowly the mean of squares changes."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """beta2 v + (1 - beta2) D^2."""
        return self.beta2 * v + (1 - self.beta2) * square

    @property
    def fading(self) -> float:
        """As b in `furthest`."""
        return self.beta2


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """Like FedAdam, but v changes by the size of D^2 only, so it falls slowly."""

    name: ClassVar[str] = "fedyogi"

    beta2: Decay = 0.99
    """How slowly the mean of squares changes."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """v - (1 - beta2) D^2 sign(v - D^2)."""
        return v - (1 - self.beta2) * square * torch.sign(v - square)

    @property
    def fading(self) -> float:
        """As b in `furthest`."""
        return self.beta2
