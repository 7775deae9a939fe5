"""FLTrust: updates count by how far they agree with one that the server trains itself on a few clean samples.

Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021. The server
trains its own copy of the model on its samples as a client would, which gives g_0:
    TS_k = ReLU(cos(g_k, g_0))                                              (Eq. 2)
    g_k  <- |g_0| / |g_k| g_k                                               (Eq. 3)
    g    = sum_k TS_k g_k / sum_k TS_k                                      (Eq. 4)
An update that turns away from the server's does not count, and none is longer than the server's. `samples` of every
class are drawn from the clients' training data, taken away from the clients, and the run's log says so.

Differs from the paper in: it assumes clean data that the server has gathered itself. Where no update agrees at all,
which the paper leaves open, the model stays. Buffers, where there are any, are averaged with the trust scores alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import Merger, Method, Server
from fedframe.core.client_runtime import ClientRuntime
from fedframe.data.ragged import grouped
from fedframe.errors import SettingError
from fedframe.methods.parts.nash import combination
from fedframe.methods.parts.robust import GatheringMerger, RobustMerge

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass(frozen=True)
class FLTrust(RobustMerge):
    """The mean of updates of one length, weighted by their cosine with the server's own."""

    name: ClassVar[str] = "fltrust"
    paper: ClassVar[str] = "Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021"

    samples: Annotated[int, Field(ge=1)] = 10  # of every class, on the server
    """Samples of every class that the server holds."""

    def check_method(self, method: Method) -> None:
        """Refuse methods without a shared model, which the server could train itself."""
        RobustMerge.check_method(self, method)
        if not method.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'fltrust' has the server train the shared model, and here a part "
                "of it stays on the clients; use another robust merge, such as median or rfa."
            )

    @property
    def server_samples(self) -> float:
        """Some samples of every class."""
        return self.samples

    def merger(self, server: Server) -> Merger:
        """Keeps every update: memory grows with the clients of a round."""

        def rule(gathered: GatheringMerger) -> Tensor:
            trusted = server_update(server).double()[: server.layout.trainable]
            trust, lengths = trust_scores(gathered.trainable(), trusted)
            server.figures |= {"fltrust/trusted": int((trust > 0).sum()), "fltrust/norm": float(trusted.norm())}
            shares = trust / trust.sum() if bool(trust.any()) else trust
            factors = shares * trusted.norm() / lengths.clamp_min(torch.finfo(torch.float64).tiny)  # Eq. 3
            step = combination(gathered.trainable(), factors)  # Eq. 4
            buffers = [update[server.layout.trainable :] for update in gathered.updates]
            return torch.cat([step, combination(buffers, shares)])

        return GatheringMerger(server, rule)

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """As long as the server's own update, which has nothing to do with the clients'."""
        return None


def trust_scores(updates: list[Tensor], trusted: Tensor) -> tuple[Tensor, Tensor]:
    """TS_k and |g_k| of every update; an update of zero agrees with nothing."""
    lengths = torch.stack([update.double().norm() for update in updates])
    products = torch.stack([update.double() @ trusted for update in updates])
    tiny = torch.finfo(torch.float64).tiny
    return (products / (lengths * trusted.norm()).clamp_min(tiny)).clamp_min(0.0), lengths  # Eq. 2


def server_update(server: Server) -> Tensor:
    """The server's own update: a round of the one client loop, for a client that has the server's samples."""
    job, rows = server.job, server.job.federation.server_rows
    alone = replace(job.federation, train=grouped(np.zeros(len(rows), np.int64), rows.numpy(), 1))
    runtime = ClientRuntime(replace(job, federation=alone, folder=job.folder / "server"))
    return runtime.perform(server.build_request("train", server.current_round), 0).tensors["update"]
