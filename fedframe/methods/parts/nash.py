"""Global Nash equilibrium: the clients bargain over the direction of the server's step (GNE of FedRANE, section 3.4).

Liao et al., Joint Local Relational Augmentation and Global Nash Equilibrium for Federated Learning with Non-IID Data.
With the clients' updates as the columns of G and M = G'G, the bargain is the direction G p with M p = 1/p (Eq. 14): it
maximises sum_k log <g_k, d> over directions d, so every client gains by it, and no client counts for more by sending
a longer update.

By default clients bargain with the weights that they have in the mean: M p = w/p maximises sum_k w_k log <g_k, d> (the
asymmetric bargain of Harsanyi and Selten, 1972).

Differs from the paper in:
- There every client counts the same, however few samples it has. With clients of very different sizes the smallest
  then dominate the rest; `say` = `equal` is the paper's.
- The paper approximates p by a sequence of convex problems (Eq. 15, 16). M p = 1/p is the gradient equation of the one
  strictly convex function 1/2 p'Mp - sum_k log p_k, which Newton's method minimises exactly, in milliseconds.
- The length of the step. Algorithm 1 takes G p as it is; since p'Mp = K, its norm is sqrt(K) in every round, whatever
  the clients did (so "radius r = K" can only mean the squared norm), and the model would never come to rest. By
  default the step has the norm of FedAvg's; `length` offers the others.
- Where no direction helps every client, M p = 1/p has no solution; the paper does not say what then. Here M gets a
  ridge, and the run's log says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedframe.core import Key, Merger, Message, Part, Server, State
from fedframe.core.kept_updates import Columns, KeptUpdates

if TYPE_CHECKING:
    from fedframe.core.job import Job

EXACT = 1e-8  # the largest residual that counts as solved
RIDGE = 1e-3  # added to the cosine of every update with itself, as if 3 % of its length were noise of its own
CONFLICTS = Key[Tensor]("gne/conflicts")  # rounds without an agreement
BLOCK = 2**21  # numbers that are held in float64 at a time


# -- the bargain -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bargain:
    """The solution p of M p = w/p, or of (M + ridge diag M) p = w/p where the updates cannot agree."""

    p: Tensor  # (clients,) float64; 0 for a client whose update is zero, which does not bargain
    residual: float  # max |p (M p) / w - 1|: the certificate
    iterations: int
    agreed: bool  # whether the direction G p helps every client
    ridge: float = 0.0


def bargain(gram: Tensor, weights: Tensor | None = None) -> Bargain:
    """Solve M p = w/p for the Gram matrix of the updates (float64, clients x clients); w is 1 unless given.

    Updates that cancel so nearly that double precision cannot hold p to a residual of 1e-8 (two of them within about
    1e-4 of opposite) count as cancelling: no agreement.
    """
    live = gram.diagonal() > 0
    p = torch.zeros_like(gram.diagonal())
    if not bool(live.any()):
        return Bargain(p, 0.0, 0, agreed=True)
    some = gram[live][:, live]
    w = torch.ones_like(some.diagonal()) if weights is None else weights[live]
    # All lengths to within 1 of each other, by powers of two: nothing is rounded, so the residual holds for M itself.
    exponents = torch.frexp(some.diagonal().sqrt()).exponent
    scaled = torch.ldexp(torch.ldexp(some, -exponents[:, None]), -exponents[None, :])
    q, residual, iterations = newton(scaled, w)
    agreed = residual < EXACT
    if not agreed:
        q, residual, more = newton(scaled + torch.diag(RIDGE * scaled.diagonal()), w)
        iterations += more
    p[live] = torch.ldexp(q, -exponents)
    return Bargain(p, residual, iterations, agreed, 0.0 if agreed else RIDGE)


def newton(matrix: Tensor, w: Tensor, most: int = 100) -> tuple[Tensor, float, int]:
    """Minimise 1/2 q'Cq - sum w log q by Newton's method in relative variables: q (1 + t s), t by exact line search.

    Returns the best q with its residual and the number of iterations. Gives up when q grows beyond what double
    precision can tell from a solution at infinity, which is where it lies when no agreement is possible.
    """
    q, total = w.sqrt(), float(w.sum())
    q *= math.sqrt(total / max(float(q @ matrix @ q), 1e-6 * total))  # the best multiple: q'Cq = sum w
    best, least, stale = q, math.inf, 0
    for iteration in range(most):
        image = matrix @ q
        gradient = q * image - w  # in relative variables; zero where C q = w/q (Eq. 14)
        residual = float((gradient / w).abs().max())
        # Near the end every iteration squares the residual; where it does not, rounding is all that is left.
        stale = stale + 1 if residual > least / 2 and least < 0.1 else 0
        if residual < least:
            best, least = q, residual
        noise = 1e-16 * float((q.square() / w).max())  # of the residual, from rounding q alone
        if least < 1e-13 or noise > 10 * EXACT or stale >= (1 if least < EXACT else 4):
            return best, least, iteration
        hessian = q[:, None] * matrix * q
        hessian.diagonal().add_(w)
        factor, failed = torch.linalg.cholesky_ex(hessian)
        if int(failed):
            return best, least, iteration
        s = -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        d = q * s
        q = q * (1 + line_search(s, w, float(d @ image), max(float(d @ matrix @ d), 0.0)) * s)
    return best, least, most


def line_search(s: Tensor, w: Tensor, slope: float, curvature: float) -> float:
    """The minimiser over t > 0 of t slope + t^2/2 curvature - sum w log(1 + t s): Newton's method within bounds."""
    lowest = float(s.min())
    limit = -0.999 / lowest if lowest < 0 else 1e6  # 1 + t s stays positive
    t = min(1.0, limit)
    for _ in range(30):
        u = s / (1 + t * s)
        step = (slope + curvature * t - float(w @ u)) / (curvature + float(w @ u.square()))
        before, t = t, min(max(t - step, t / 10), (t + limit) / 2)
        if abs(t - before) < 1e-6 * t:  # near enough: the next iteration corrects the rest
            break
    return t


# -- the part ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Nash(Part):
    """The bargained direction; `length` says how far to go.

    `fedavg_norm`: that of the (weighted) mean update. `sum`: p / sum p, a mean whose shares are bargained. `radius`:
    G p itself, of norm sqrt(clients). `say`: what clients bargain with, their `weights` in the mean or `equal` ones.
    """

    name: ClassVar[str] = "gne"
    paper: ClassVar[str] = (
        "Liao et al., Joint Local Relational Augmentation and Global Nash Equilibrium (FedRANE), MM 2023"
    )

    length: Literal["fedavg_norm", "sum", "radius"] = "fedavg_norm"
    """Length of the step: as long as FedAvg's (`fedavg_norm`), that of the weighted `sum`, or the paper's `radius`."""
    say: Literal["weights", "equal"] = "weights"
    """What clients bargain with: their `weights` in the mean, or `equal` ones."""

    def server_state(self, server: Server) -> dict[str, State]:
        """How many rounds ended without agreement."""
        return {CONFLICTS: State(torch.zeros(1))}

    def merger(self, server: Server) -> Merger:
        """Keeps every update, the first half gigabyte in memory and the rest in a file of the run folder."""
        return NashMerger(self, server)

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """No longer than the mean or a mean; G p itself has a length that has nothing to do with the updates'."""
        return {"model": longest["update"]} if self.length != "radius" else None


class NashMerger:
    """Gathers the updates, then bargains."""

    def __init__(self, part: Nash, server: Server) -> None:
        self.part, self.server = part, server
        self.kept = KeptUpdates(server.job.folder)
        self.weights: list[float] = []

    @property
    def updates(self) -> list[Columns]:
        """The updates so far."""
        return self.kept.updates

    def add(self, reply: Message, weight: float) -> None:
        """Keep one client's update."""
        self.kept.add(reply.tensors["update"][: self.server.layout.trainable])
        self.weights.append(weight)

    def finish(self) -> Tensor:
        """The bargained step."""
        gram = gram_matrix(self.updates)
        weights = torch.tensor(self.weights, dtype=torch.float64)
        found = bargain(gram, weights / weights.mean() if self.part.say == "weights" else None)
        usual = norm(gram, weights / weights.sum())  # of FedAvg's step
        total = max(float(found.p.sum()), torch.finfo(torch.float64).tiny)
        shares = found.p / total
        here = norm(gram, shares)
        # Where the updates cancel, what is left of the direction is rounding: no client agreed to it.
        vanished = here <= 1e-6 * float(shares @ gram.diagonal().sqrt())
        factors = {"fedavg_norm": 0.0 if vanished else usual / here, "sum": 1.0, "radius": total}
        self.report(found, here / usual if usual else 0.0, vanished)
        return combination(self.updates, shares * factors[self.part.length])  # Eq. 11

    def report(self, found: Bargain, ratio: float, vanished: bool) -> None:
        """Record figures in every round, and log the first one in which no agreement was possible."""
        server = self.server
        server.figures |= {
            "gne/residual": found.residual,
            "gne/agreed": float(found.agreed),
            "gne/norm_ratio": ratio,  # of the step with `sum` to FedAvg's
        }
        if found.agreed:
            return
        if not server.state[CONFLICTS].any():
            then = "the updates cancel and the model stays" if vanished else f"a ridge of {found.ridge:g} is added"
            server.note(
                f"Round {server.round + 1}: no step helps all {len(self.updates)} clients, so their bargain (gne) has "
                f"no solution; {then}. Later rounds of this kind have gne/agreed = 0 in the metrics."
            )
        server.state[CONFLICTS] = server.state[CONFLICTS] + 1


def norm(gram: Tensor, shares: Tensor) -> float:
    """The norm of a combination of updates, from their Gram matrix."""
    return math.sqrt(max(float(shares @ gram @ shares), 0.0))


def blocks(updates: Sequence[Columns]) -> range:
    """Where blocks of columns begin, so that one block of all updates is small beside the updates."""
    width = max(BLOCK // len(updates), 1)
    return range(0, len(updates[0]), width)


def gram_matrix(updates: Sequence[Columns]) -> Tensor:
    """All inner products of the updates in float64."""
    gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    columns = blocks(updates)
    for start in columns:
        block = torch.stack([update[start : start + columns.step] for update in updates]).double()
        gram.addmm_(block, block.T)
    return (gram + gram.T) / 2


def combination(updates: Sequence[Columns], shares: Tensor) -> Tensor:
    """The sum of the updates with these factors, in float64."""
    columns = blocks(updates)
    pieces = [
        shares @ torch.stack([update[start : start + columns.step] for update in updates]).double() for start in columns
    ]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)
