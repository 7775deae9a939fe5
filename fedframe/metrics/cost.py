"""What a run costs: processor time and memory of its processes, bytes sent, floating-point operations of a sample."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import psutil
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedframe.core.layout import Layout
from fedframe.core.method import Method
from fedframe.core.model import Model

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


WHOLE_MODEL = ("model", "update")  # the flat vector of all shared weights, down and up


def cpu_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    if resource is None:
        return time.process_time()
    here, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return here.ru_utime + here.ru_stime + children.ru_utime + children.ru_stime


def memory_bytes(processes: Iterable[int]) -> int:
    """Current memory of this process and the given ones.

    Linux shares each page among its users (PSS), so that it counts once. Elsewhere only pages that no other process has
    are counted.
    """
    total = 0
    for process in (os.getpid(), *processes):
        try:
            found = psutil.Process(process).memory_full_info()
        except psutil.Error:  # it has ended, or is someone else's
            continue
        total += getattr(found, "pss", found.uss)
    return total


def highest_memory_bytes() -> int:
    """The most memory that this process has had since it began; 0 where the system does not say."""
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def count_flops(method: Method, model: Model, shape: Sequence[int]) -> tuple[int, int]:
    """Floating-point operations of a prediction and of a training step on cross-entropy, for one sample.

    They are the products and sums of matrix products and convolutions, counted by torch. What parts add to a step
    (penalties, second models) is not included.
    """
    device = next(model.parameters()).device
    inputs = torch.zeros(1, *shape, device=device)
    model.eval()  # BatchNorm has no statistics of a single sample, and must not update any
    with torch.no_grad(), FlopCounterMode(display=False) as prediction:
        method.logits(model, inputs)
    trainable = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad(), FlopCounterMode(display=False) as training:
        loss = F.cross_entropy(method.logits(model, inputs), torch.zeros(1, dtype=torch.int64, device=device))
        if loss.requires_grad:
            torch.autograd.grad(loss, trainable, allow_unused=True)  # leaves no gradient behind
    return int(prediction.get_total_flops()), int(training.get_total_flops())


def bytes_by_part(traffic: Mapping[str, Mapping[str, int]], layout: Layout) -> dict[str, dict[str, int]]:
    """Bytes up and down by part: `backbone`, `head` and what parts add to the model or to messages.

    The model is sent as one vector, in which each tensor counts with the space up to where the next one begins. The
    sums over the parts are exactly the bytes that were counted.
    """
    found: dict[str, dict[str, int]] = {}
    sizes = size_by_part(layout)
    for way, tensors in traffic.items():
        for name, size in tensors.items():
            pieces = {part_of(name): size}
            if name in WHOLE_MODEL:
                # A whole number of models was sent, so that nothing is rounded, except for updates of a wrong size.
                pieces = {part: size * share // layout.size for part, share in sizes.items()} if layout.size else {}
                if rest := size - sum(pieces.values()):
                    pieces["refused"] = rest
            for part, piece in pieces.items():
                entry = found.setdefault(part, {"up": 0, "down": 0})
                entry[way] += piece
    return found


def size_by_part(layout: Layout) -> dict[str, int]:
    """How many numbers of the flat vector belong to each part."""
    ends = [*(entry.start for entry in layout.entries[1:]), layout.size]
    sizes: dict[str, int] = {}
    for entry, end in zip(layout.entries, ends, strict=False):  # there is an end even if nothing is shared
        part = part_of(f"fixed/{entry.name}")
        sizes[part] = sizes.get(part, 0) + end - entry.start
    return sizes


def part_of(name: str) -> str:
    """The part a tensor belongs to, by its name in a message: `scaffold/c`, `fixed/head.weight`."""
    first, _, rest = name.partition("/")
    if first != "fixed":
        return first
    module, _, inner = rest.partition(".")
    return inner.partition(".")[0] if module == "extras" else module
