"""How convolutions lie in memory: channels_last, which most nets run faster with on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def channels_last(net: nn.Module) -> nn.Module:
    """Store the weights of two-dimensional convolutions channels_last, in place."""
    for parameter in net.parameters():
        # Not Module.to(memory_format=...): it raises on the five-dimensional weights of a Conv3d, and leaves
        # a weight for grey images alone, (32, 1, 5, 5) being both layouts at once. Strides
        # that say channels_last leave torch no choice of layout for what follows.
        if parameter.dim() == 4:
            data = parameter.data
            parameter.data = torch.empty_like(data, memory_format=torch.channels_last).copy_(data)
    return net


def contiguous_maps(net: nn.Module) -> nn.Module:
    """Make every convolution hand on maps in torch's default layout, whatever the layout of its weights."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.register_forward_hook(_contiguous)
    return net


def _contiguous(_module: nn.Module, _inputs: object, maps: Tensor) -> Tensor:
    return maps.contiguous()
