"""Linear CKA: how similar two nets' representations of the same samples are, layer by layer.

Kornblith et al., Similarity of Neural Network Representations Revisited, ICML 2019. For activations X, Y (samples,
units) with centred columns
    CKA = ||Y'X||_F^2 / (||X'X||_F ||Y'Y||_F) = <K, L> / (||K||_F ||L||_F)     with K = XX', L = YY'
which is 1 for representations that are equal up to rotation and scale. The second form needs a matrix of samples times
samples per layer and net, however wide the layer is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from fedframe.core.job import Job
from fedframe.core.method import Method
from fedframe.core.model import Model
from fedframe.metrics.sampling import sample_rows

COLUMNS = 8192  # units of a layer that are widened to float64 together
MOST_LAYERS = 24
CKA_CLIENTS = 5  # whose nets are compared: ten pairs
CKA_SAMPLES = 200


def centred_gram(activations: Tensor) -> Tensor:
    """K in float64 on the CPU, (samples, samples)."""
    flat = activations.detach().flatten(1)
    K = torch.zeros(len(flat), len(flat), dtype=torch.float64)
    for columns in flat.split(COLUMNS, dim=1):  # type: ignore[no-untyped-call]
        wide = columns.double().cpu()
        wide = wide - wide.mean(0)
        K += wide @ wide.T
    return K


def linear_cka(K: Tensor, L: Tensor) -> float | None:
    """CKA of two representations from their Gram matrices; None if one is constant over the samples or has diverged."""
    size = float(K.norm() * L.norm())
    return min(1.0, float((K * L).sum()) / size) if 0 < size < math.inf else None


@torch.no_grad()
def layer_grams(method: Method, model: Model, inputs: Tensor) -> dict[str, Tensor]:
    """The Gram matrices of layers with weights (of deep nets, some of them) and of the logits; in evaluation mode."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> object:
        def hook(module: nn.Module, taken: object, given: object) -> None:
            if isinstance(given, Tensor) and given.ndim > 1:
                found[name] = centred_gram(given)

        return hook

    handles = [
        module.register_forward_hook(keep(name))  # type: ignore[arg-type]
        for name, module in weighted_layers(model)
    ]
    try:
        logits = method.logits(model.eval(), inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {**found, "logits": centred_gram(logits)}


def weighted_layers(model: Model) -> list[tuple[str, nn.Module]]:
    """The modules with a matrix or kernel of their own, except the classifier, whose outputs are the logits."""
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if any(p.ndim > 1 for p in module.parameters(recurse=False)) and not name.startswith("head")
    ]
    if len(layers) <= MOST_LAYERS:
        return layers
    step = (len(layers) - 1) / (MOST_LAYERS - 1)
    return [layers[round(place * step)] for place in range(MOST_LAYERS)]


def mean_cka(grams: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The mean CKA over all pairs of nets, by layer; layers where it is not defined are left out."""
    means: dict[str, float] = {}
    for layer in grams[0] if grams else ():
        pairs = [linear_cka(one[layer], other[layer]) for one, other in combinations(grams, 2)]
        known = [value for value in pairs if value is not None]
        if known:
            means[layer] = sum(known) / len(known)
    return means


def common_inputs(job: Job) -> Tensor:
    """The samples that all models see: of the global test set, or of the training data where there is none."""
    source = job.federation.source
    samples, rows = source.train, job.federation.train.values
    if source.test is not None and len(source.test):
        samples, rows = source.test, job.test_rows("test")
    return source.batch(samples, sample_rows(rows, CKA_SAMPLES, job.settings.seed, "cka")).to(job.device)
