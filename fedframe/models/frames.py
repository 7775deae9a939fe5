"""Fixed classifiers: orthonormal rows, the simplex ETF, the sparse ETF and random ones; each a matrix (classes, dim).

A simplex equiangular tight frame (ETF) is C unit vectors with all cosines equal to -1/(C-1), the largest angle that C
vectors can have pairwise. It exists for every dim >= C-1.

The sparse ETF (SSE-C: Xiao et al., FedLoGe, ICLR 2024, Eqs. 2-5) has a share `sparsity` of zeros in every class vector
and the same angles. It is found by alternating projection: one step moves the frame towards the nearest tight frame
(a Newton-Schulz polar step, centred so that the class vectors sum to zero), the next puts the zeros back; momentum
speeds it up.

Differs from the paper in: alternating projection instead of 10,000 SGD steps on Eq. 5, which as printed does not
converge; every class vector has the same number of zeros; no feature is read by one class alone (its weight would have
to be zero, because the class vectors of an ETF sum to zero); what cannot be built is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor, nn

from fedframe.errors import SettingError

Init = Literal["xavier", "gaussian", "uniform", "orthogonal", "kaiming"]

TOLERANCE = 1e-6  # largest error of a norm or a cosine in the finished float32 frame
MAX_STEPS = 3000  # of the search for a sparse ETF
MAX_WORK = 4e12  # floating-point operations of the search: 490 steps for 1000 classes and 2048 features
MAX_DRAWS = 20  # of the mask of a sparse ETF
NEAREST_STEPS = 500  # of the descent towards an ETF that does not exist
LARGE_FRAME = 200_000  # entries from which most of the search is done in float32


_loading_weights: ContextVar[bool] = ContextVar("loading_weights", default=False)


@contextmanager
def loading_weights() -> Iterator[None]:
    """Skip the search for a sparse ETF while a model is built whose weights (and class vectors) are loaded next."""
    token = _loading_weights.set(True)
    try:
        yield
    finally:
        _loading_weights.reset(token)


def orthonormal(classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """Orthonormal class vectors, uniformly random (Haar)."""
    if not 1 <= classes <= dim:
        raise SettingError(
            f"{classes} orthonormal class vectors need features of at least {classes} numbers, not {dim}; "
            "choose a larger net, or write METHOD+projection."
        )
    return _haar(dim, classes, generator).T.contiguous().float()


def simplex_etf(classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """Unit class vectors with all cosines -1/(C-1), randomly rotated (FedLoGe's Eq. 2)."""
    _check_etf(classes, dim)
    corners = _centred_basis(classes) * math.sqrt(classes / (classes - 1))  # (C, C-1): an ETF of the smallest dimension
    return (corners @ _haar(dim, classes - 1, generator).T).float()


def sparse_etf(
    classes: int,
    dim: int,
    sparsity: float,
    generator: torch.Generator,
    norm: float = 1.0,
    best_effort: bool = False,
) -> Tensor:
    """A simplex ETF whose class vectors have a share `sparsity` of zeros each, and length `norm`.

    The share is rounded to whole features; with no zero at all it is `simplex_etf`. Where there is no such ETF, an
    error says so; with `best_effort` the nearest vectors that were found are taken, whose angles spread around its own.
    """
    if _loading_weights.get():
        return torch.zeros(classes, dim)
    zeros = _count_zeros(dim, sparsity)
    _check_norm(norm)
    if zeros == 0:
        return simplex_etf(classes, dim, generator) * norm
    _check_etf(classes, dim)
    seed = int(torch.randint(2**62, (), generator=generator))
    frame = _try_sparse(classes, dim, zeros, seed)
    if frame is None and best_effort and zeros < dim:
        frame = _nearest_sparse(classes, dim, zeros, seed)
    if frame is None:
        best = _largest_that_works(classes, dim, zeros, seed)
        raise SettingError(
            f"sparsity = {sparsity:g} leaves {(dim - zeros) * classes} weights in {dim} features, too few to find "
            f"an ETF of {classes} classes, which has {classes * (classes + 1) // 2} norms and angles; "
            f"sparsity = {_share(best, dim)} works, the largest to within 0.01; or choose a larger net."
        )
    return frame * norm


def angle_spread(frame: Tensor) -> tuple[float, float]:
    """The smallest and the largest angle between class vectors, in degrees; in an ETF both are arccos(-1/(C-1))."""
    unit = nn.functional.normalize(frame.double())
    cosines = (unit @ unit.T)[~torch.eye(len(unit), dtype=torch.bool)]
    nearest, farthest = (math.degrees(math.acos(float(c.clamp(-1, 1)))) for c in (cosines.max(), cosines.min()))
    return nearest, farthest


def random_frame(classes: int, dim: int, init: Init, generator: torch.Generator) -> Tensor:
    """Random class vectors, the other frozen classifiers of FedLoGe's Table 9: torch's `nn.init` with its defaults."""
    if init == "orthogonal":
        return orthonormal(classes, dim, generator)
    frame = torch.empty(classes, dim)
    if init == "xavier":
        return nn.init.xavier_uniform_(frame, generator=generator)
    if init == "gaussian":
        return nn.init.normal_(frame, generator=generator)
    if init == "uniform":
        return nn.init.uniform_(frame, generator=generator)
    return nn.init.kaiming_uniform_(frame, generator=generator)


def sparsify(frame: Tensor, sparsity: float, generator: torch.Generator, norm: float | None = None) -> Tensor:
    """The frame with a share `sparsity` of zeros at random positions of every class vector (Table 9, "sparse").

    With `norm` all vectors then get that length (a Gaussian frame is then uniform on the sphere); None keeps them.
    """
    zeros = _count_zeros(frame.shape[1], sparsity)
    if zeros == frame.shape[1]:
        raise SettingError(f"sparsity = {sparsity:g} leaves no weight of {zeros} features; choose less, such as 0.6.")
    if zeros:
        ranks = torch.rand(frame.shape, generator=generator, dtype=torch.float64).argsort(1).argsort(1)
        frame = frame.masked_fill(ranks < zeros, 0.0)
    if norm is not None:
        _check_norm(norm)
        frame = nn.functional.normalize(frame) * norm
    return frame


def _haar(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Orthonormal columns, uniformly random: QR of a Gaussian, with the signs of R's diagonal removed."""
    gauss = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    with _one_thread():
        q, r = torch.linalg.qr(gauss)
    haar: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return haar


def _centred_basis(classes: int) -> Tensor:
    """Orthonormal columns (C, C-1) that span the vectors whose entries sum to zero (Helmert)."""
    k = torch.arange(1, classes, dtype=torch.float64)
    basis = torch.ones(classes, classes - 1, dtype=torch.float64).triu() - torch.diag(k, -1)[:, :-1]
    return basis / (k * (k + 1)).sqrt()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Fix the order of summation, so that a frame has the same bits for any number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _etf_gram(classes: int, dtype: torch.dtype) -> Tensor:
    """The Gram matrix of a simplex ETF: 1 on the diagonal, -1/(C-1) elsewhere."""
    return (classes * torch.eye(classes, dtype=dtype) - 1) / (classes - 1)


def _count_zeros(dim: int, sparsity: float) -> int:
    """The number of zeros per class vector, in whole features."""
    if not 0 <= sparsity < 1:
        raise SettingError(f"sparsity = {sparsity} is not a share of zeros; choose one from 0 to below 1, such as 0.6.")
    return round(sparsity * dim)


def _check_etf(classes: int, dim: int) -> None:
    if classes < 2:
        raise SettingError(f"A simplex ETF needs at least 2 classes, not {classes}; choose another classifier.")
    if dim < classes - 1:
        raise SettingError(
            f"A simplex ETF of {classes} classes needs features of at least {classes - 1} numbers, not {dim}; "
            "choose a larger net, or write METHOD+projection."
        )


def _check_norm(norm: float) -> None:
    if not 0 < norm < math.inf:
        raise SettingError(f"norm = {norm} is not a length of a class vector; choose one above 0, such as 1.")


def _share(zeros: int, dim: int) -> str:
    """The shortest decimal share that gives this number of zeros."""
    texts = (f"{zeros / dim:.{digits}g}" for digits in range(2, 17))
    return next(text for text in texts if round(float(text) * dim) == zeros)


def _try_sparse(classes: int, dim: int, zeros: int, seed: int) -> Tensor | None:
    """A verified sparse ETF with unit norms, or None if none was found; deterministic in its arguments."""
    if (dim - zeros) * classes <= classes * (classes + 1) // 2:
        return None
    generator = torch.Generator().manual_seed(seed)
    for _ in range(MAX_DRAWS):
        mask = _draw_mask(classes, dim, dim - zeros, generator)
        if mask is not None:
            break
    else:
        return None
    # Constraints: a zero sum in every used feature, and the angles between the class vectors.
    used = int(mask.any(0).sum())
    if (dim - zeros) * classes < used + classes * (classes - 1) // 2:
        return None
    with _one_thread():
        frame = _solve(mask, generator)
    if frame is None:
        return None
    frame = nn.functional.normalize(frame).float().masked_fill(~mask, 0.0)
    exact = frame.double()
    valid = float((exact @ exact.T - _etf_gram(classes, torch.float64)).abs().max()) < TOLERANCE
    return frame if valid and bool(((frame == 0).sum(1) == zeros).all()) else None


def _nearest_sparse(classes: int, dim: int, zeros: int, seed: int) -> Tensor:
    """Unit class vectors with this many zeros, as near to an ETF as the search gets; deterministic in its arguments."""
    generator = torch.Generator().manual_seed(seed)
    mask = _draw_mask(classes, dim, dim - zeros, generator)
    if mask is None:  # two classes have no feature in common: they stay orthogonal, which is next to the ETF's angle
        mask = torch.rand(classes, dim, generator=generator, dtype=torch.float64).argsort(1).argsort(1) < dim - zeros
    gram, support = _etf_gram(classes, torch.float64), mask.double()
    frame = nn.functional.normalize(torch.randn(classes, dim, generator=generator, dtype=torch.float64) * support)
    step = 0.5
    with _one_thread():
        error = frame @ frame.T - gram
        for _ in range(NEAREST_STEPS):  # descent on ||W W' - G||^2 over unit vectors; a step that overshoots is halved
            moved = nn.functional.normalize((frame - step * (error @ frame)) * support)
            left = moved @ moved.T - gram
            if float(left.norm()) < float(error.norm()):
                frame, error, step = moved, left, 1.05 * step
            else:
                step /= 2
    return frame.float()


def _draw_mask(classes: int, dim: int, keep: int, generator: torch.Generator) -> Tensor | None:
    """Where the weights are, (classes, dim): `keep` random features per class, and no feature used by a single class.

    With three or more classes per feature on average, every feature is used by at least two; with fewer, a weight that
    is alone in its feature moves to another. None if two classes have no feature in common: they would be orthogonal.
    """
    score = torch.rand(classes, dim, generator=generator, dtype=torch.float64)
    mask = score.argsort(1).argsort(1) < keep
    count = mask.sum(0)  # classes that use a feature

    def move(label: int, source: int, target: int) -> None:
        mask[label, source], mask[label, target] = False, True
        count[source] -= 1
        count[target] += 1

    if keep * classes >= 3 * dim:
        while int(count.min()) < 2:
            fewest, most_used = int(count.argmin()), int(count.argmax())
            movable = mask[:, most_used] & ~mask[:, fewest]
            move(int(torch.where(movable, score[:, most_used], -1.0).argmax()), most_used, fewest)
    else:
        while bool((single := count == 1).any()):
            source = int(single.int().argmax())
            label = int(mask[:, source].int().argmax())
            available = (count > 0) & ~mask[label]
            if not bool(available.any()):
                return None
            move(label, source, int(torch.where(available, score[label], -1.0).argmax()))
    shared = mask.float() @ mask.float().T
    return mask if bool((shared > 0).all()) else None


def _solve(mask: Tensor, generator: torch.Generator) -> Tensor | None:
    """Search for an ETF whose weights are where the mask is; None if the search does not converge."""
    classes, dim = mask.shape
    steps = min(MAX_STEPS, int(MAX_WORK / (4 * dim * classes**2)))
    frame = nn.functional.normalize(torch.randn(classes, dim, generator=generator, dtype=torch.float64) * mask)
    if classes * dim >= LARGE_FRAME:
        frame, used = _iterate(frame.float(), mask, steps, 5e-6)
        frame, steps = frame.double(), steps - used
    frame, used = _iterate(frame, mask, steps, TOLERANCE / 10)
    return frame if used < steps else None


def _iterate(frame: Tensor, mask: Tensor, max_steps: int, tolerance: float) -> tuple[Tensor, int]:
    """Alternating projection with momentum until all norms and cosines are within tolerance; and the steps it took."""
    classes = len(mask)
    support = mask.to(frame.dtype)
    gram, eye = _etf_gram(classes, frame.dtype), torch.eye(classes, dtype=frame.dtype)
    before, ahead = frame, frame
    momentum, last = 0.5, math.inf
    for step in range(max_steps):
        ahead = frame + momentum * (frame - before)
        found = ahead @ ahead.T
        error = found - gram
        if float(error.abs().max()) < tolerance:
            return ahead, step
        size = float(error.norm())
        momentum = 0.5 if size > last else min(0.85, momentum + 0.02)  # restart when it overshoots
        last = size
        polar = 1.5 * eye - 0.5 * (classes - 1) / classes * found  # Newton-Schulz, towards a tight frame
        polar = polar - polar.mean(0)  # towards class vectors that sum to zero
        before, frame = frame, (polar @ ahead).mul_(support)
    return ahead, max_steps


def _largest_that_works(classes: int, dim: int, refused: int, seed: int) -> int:
    """The largest number of zeros, to a hundredth of `dim`, for which this seed finds a frame; 0 always works."""
    works, fails = 0, min(refused, dim - (classes + 1) // 2)
    while fails - works > max(1, dim // 100):
        middle = (works + fails) // 2
        if _try_sparse(classes, dim, middle, seed) is None:
            fails = middle
        else:
            works = middle
    return works
