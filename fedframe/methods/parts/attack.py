"""Attacks in a simulation: some clients, drawn by the seed, poison the training. To see what a defence is worth.

With u_k the update that an attacker would honestly send, c = `strength`, and mu and sigma the mean and the standard
deviation by weight of the honest updates of the round:
    sign_flip   u_k <- -c u_k                      Li et al., RSA, AAAI 2019
    scale       u_k <- c u_k                       Bagdasaryan et al., How To Backdoor Federated Learning
    label_flip  trains on y <- C - 1 - y           Tolpegin et al., Data Poisoning Attacks Against FL, ESORICS 2020
    alie        u_k <- mu - z sigma                Baruch et al., A Little Is Enough, NeurIPS 2019
    ipm         u_k <- -c mu                       Xie et al., Fall of Empires (inner product manipulation), UAI 2019
    backdoor    trains `poison` of every batch with a bright corner, labelled `target`; sends c u_k (Bagdasaryan et al.)
    overclaim   says that it has 10^9 samples
z of alie is the largest that hides among the honest: with n clients in the round, m of them attackers,
    z = max { z : Phi(z) < (n - m - s) / (n - m) },         s = floor(n / 2 + 1) - m
Attackers poison rounds only; personal models are trained as ever. `attack/success` is the share of test samples of
other classes that the shared model takes for `target` once they have the bright corner: of a clean model it is small.

Differs from the papers in: attackers are the same clients in every round. Baruch et al. estimate mu and sigma from the
attackers' own data, of which there are few; here alie and ipm know all honest updates, the worst case. They act on the
server's side of a simulation, where these are known, and are refused over a network. Backdoor boosts by c and does not
constrain what it sends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Message, Method, Model, Part, RunningMean, Server, WeightedReply
from fedframe.core.batches import plain_batches
from fedframe.errors import SettingError
from fedframe.settings import REMOTE_DATA, Settings
from fedframe.util.seeds import numpy_generator_for

# What `strength` is where it is not given; ipm's turns the mean around if a tenth of the clients attack.
STRENGTHS = {"sign_flip": 4.0, "scale": 10.0, "ipm": 10.0, "backdoor": 1.0}
COLLUDING = ("alie", "ipm")  # attackers must know the others' updates
CLAIM = 10**9  # samples
BRIGHT = 3.0  # of the backdoor's corner, in standard deviations of the inputs
MOST_TESTED = 1000  # test samples on which the backdoor is tried every round


@dataclass(frozen=True)
class Attack(Part):
    """Some clients poison the training."""

    name: ClassVar[str] = "attack"
    rank: ClassVar[int] = 55  # changes replies that are complete, before defences look at them

    kind: Literal["sign_flip", "scale", "label_flip", "alie", "ipm", "backdoor", "overclaim"] = "sign_flip"
    """What attackers do: flip, scale or shift updates, mislabel, plant a backdoor, or overclaim samples."""
    share: Annotated[float, Field(ge=0, lt=1)] = 0.2  # of all clients
    """Share of all clients that attack."""
    strength: Annotated[float, Field(allow_inf_nan=False)] | None = None  # c, or z; by default the kind's
    """Strength of the attack, c or z; empty takes the default of its kind."""
    target: Annotated[int, Field(ge=0)] = 0  # the class that the backdoor leads to
    """The class that the backdoor leads to."""
    poison: Annotated[float, Field(gt=0, le=1)] = 0.5  # share of an attacker's batch with the backdoor
    """Share of an attacker's batch that carries the backdoor."""

    # -- checks --------------------------------------------------------------------------------------------------------
    def check_method(self, method: Method) -> None:
        """Refuse a backdoor into a model that is not there."""
        if self.kind == "backdoor" and not method.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: attack.kind = 'backdoor' is into a shared model that predicts, "
                "and here a part of it stays on the clients; use another kind, such as sign_flip."
            )

    def check_settings(self, settings: Settings) -> None:
        """Refuse attacks on members of a real federation, and collusion where updates are not on this machine."""
        if settings.data == REMOTE_DATA:
            raise SettingError("'attack' is for simulations: leave it out of a federation's method.")
        if self.kind in COLLUDING and settings.engine != "local":
            raise SettingError(
                f"attack.kind = {self.kind!r} needs the honest clients' updates, which no client of a network has; use "
                "engine = local, or another kind, such as sign_flip."
            )

    def check_model(self, model: Model, clients: int) -> None:
        """Refuse a share that is not one client, and a target that is no class."""
        if self.share and not attackers(0, clients, self.share):
            raise SettingError(
                f"attack.share = {self.share:g} of {clients} clients is less than half a client; use "
                f"{1 / clients:.2g} or more, or 0."
            )
        if self.target >= model.classes:
            raise SettingError(f"attack.target = {self.target}: classes are 0 to {model.classes - 1}; use one of them.")

    # -- on the client -------------------------------------------------------------------------------------------------
    def begin_batch(self, context: ClientContext) -> None:
        """Poison an attacker's batch."""
        if self.kind not in ("label_flip", "backdoor") or not context.training or not self._attacks(context):
            return
        if self.kind == "label_flip":
            context.labels = context.model.classes - 1 - context.labels
            return
        count = math.ceil(self.poison * len(context.labels))
        context.inputs, context.labels = context.inputs.clone(), context.labels.clone()
        context.inputs[:count] = stamped(context.inputs[:count])
        context.labels[:count] = self.target

    def finish(self, context: ClientContext) -> None:
        """Poison an attacker's reply."""
        if not self._attacks(context):
            return
        if self.kind == "overclaim":
            context.numbers["samples"] = CLAIM
        elif self.kind in ("sign_flip", "scale", "backdoor"):
            factor = STRENGTHS[self.kind] if self.strength is None else self.strength
            context.reply["update"] = context.reply["update"] * (-factor if self.kind == "sign_flip" else factor)

    def _attacks(self, context: ClientContext) -> bool:
        job = context.job
        return context.client in attackers(job.settings.seed, len(job.federation), self.share)

    # -- on the server, in place of clients that know of each other ----------------------------------------------------
    def before_merge(self, server: Server, replies: Sequence[WeightedReply]) -> Sequence[WeightedReply]:
        """Replace the attackers' updates by what they have agreed on."""
        bad = attackers(server.job.settings.seed, len(server.job.federation), self.share)
        honest = [reply.tensors["update"] for reply, _ in replies if reply.unit not in bad]
        count = len(replies) - len(honest)
        server.figures["attack/attackers"] = count
        if self.kind not in COLLUDING or not count or not honest:
            return replies
        mean, deviation = moments(honest)
        if self.kind == "alie":
            z = largest_z(len(replies), count) if self.strength is None else self.strength
            agreed = mean - z * deviation
        else:
            agreed = -(STRENGTHS["ipm"] if self.strength is None else self.strength) * mean

        def as_agreed(reply: Message) -> Message:
            return replace(reply, tensors={**reply.tensors, "update": agreed.float()}) if reply.unit in bad else reply

        return [(as_agreed(reply), weight) for reply, weight in replies]

    def after_merge(self, server: Server, clients: int) -> None:
        """Try the backdoor."""
        test = server.job.federation.source.test
        if self.kind != "backdoor" or test is None:
            return
        rows = torch.nonzero(test.y != self.target)[:, 0]
        rows = rows[:: -(-len(rows) // MOST_TESTED)] if len(rows) else rows
        net, settings, source = server.net(), server.job.settings, server.job.federation.source
        hits = 0
        with torch.no_grad():
            for inputs in plain_batches(source, test, rows, settings.eval_batch):
                logits = server.job.method.logits(net, stamped(inputs).to(server.job.device))
                hits += int((logits.argmax(1) == self.target).sum())
        if len(rows):
            server.figures["attack/success"] = hits / len(rows)


@lru_cache(maxsize=16)
def attackers(seed: int, clients: int, share: float) -> frozenset[int]:
    """The clients that attack, the same for every kind of attack."""
    count = int(share * clients + 0.5)
    order = numpy_generator_for(seed, "attackers").permutation(clients)  # with a larger share these and more
    return frozenset(order[:count].tolist())


def stamped(inputs: Tensor) -> Tensor:
    """Inputs with a bright corner: a quarter of the height and width of pictures, the last eighth of other features."""
    inputs = inputs.clone()
    if inputs.dim() == 4:
        height, width = (max(1, side // 4) for side in inputs.shape[2:])
        inputs[:, :, -height:, -width:] = BRIGHT
    else:
        flat = inputs.flatten(1)
        flat[:, -max(1, flat.shape[1] // 8) :] = BRIGHT
        inputs = flat.reshape(inputs.shape)
    return inputs


def moments(updates: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of updates by weight, in float64."""
    mean, square = RunningMean(len(updates[0])), torch.zeros(len(updates[0]), dtype=torch.float64)
    for update in updates:
        mean.add(update, 1.0)
    for update in updates:
        square += (update.double() - mean.mean()).square()
    return mean.mean(), (square / len(updates)).sqrt()


def largest_z(clients: int, bad: int) -> float:
    """How far attackers can go and still have enough honest updates beyond them; 0 if they need none."""
    supporters = clients // 2 + 1 - bad
    quantile = (clients - bad - supporters) / (clients - bad)
    return max(0.0, NormalDist().inv_cdf(min(max(quantile, 1e-9), 1 - 1e-9)))
