"""`lora`: low-rank adapters beside a net's layers, by the package peft; all else of the net stays as it starts.

A layer's W becomes W + (alpha / r) B A with A (r, inputs), B (outputs, r) and B = 0 at first (Hu et al., LoRA, ICLR
2022). Only A, B and the classifier train and travel; the rest has to be the same everywhere from the start (`weights`).
"""

from __future__ import annotations

import re

from torch import nn

from fedframe.errors import SettingError
from fedframe.util.extras import extra

LISTED = 4  # names of layers that a sentence lists


def adapt(net: nn.Module, rank: int, alpha: float | None = None, layers: str = "auto") -> tuple[str, ...]:
    """Put adapters beside layers, in place; returns the names of the tensors that learn. None with rank 0."""
    if not rank:
        return ()
    with extra("lora", f"lora = {rank} needs peft"):
        from peft import LoraConfig, inject_adapter_in_model
    chosen = "|".join(map(re.escape, adapted_layers(net, layers)))
    config = LoraConfig(r=rank, lora_alpha=2 * rank if alpha is None else alpha, target_modules=f"(?:{chosen})")
    inject_adapter_in_model(config, net)
    return tuple(name for name, _ in net.named_parameters() if ".lora_" in name)


def adapted_layers(net: nn.Module, layers: str) -> list[str]:
    """Paths of the layers that get adapters: those whose names end so, or all linear ones, or else convolutions."""
    # Attention of torch itself reads the weights of its layers and never calls them.
    inside = [f"{path}." for path, module in net.named_modules() if isinstance(module, nn.MultiheadAttention)]
    fitting = {
        path: module
        for path, module in net.named_modules()
        if path
        and (isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1))
        and not path.startswith(tuple(inside))
    }
    if not fitting:
        raise SettingError("lora: the net has no linear layer and no convolution for adapters; use lora = 0.")
    if layers == "auto":
        linear = [path for path, module in fitting.items() if isinstance(module, nn.Linear)]
        return linear or list(fitting)
    found: list[str] = []
    for end in (text.strip() for text in layers.split(",")):
        here = [path for path in fitting if path == end or path.endswith(f".{end}")]
        if not here:
            raise SettingError(
                f"lora_layers = {layers!r}: no layer that can have adapters has a name that ends in {end!r}; use auto, "
                f"or ends of {_some(list(fitting))}."
            )
        found += here
    return [*dict.fromkeys(found)]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
