"""From stored values to model-ready values: (raw - mean) / std, and where mean and std come from."""

from __future__ import annotations

import torch

CHUNK = 1024  # rows per pass over a whole set: bounds the memory of the statistics


def normalised(raw: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, *, overwrite: bool = False) -> torch.Tensor:
    """Model-ready float32 values of stored ones.

    Takes the stored layout, (n, H, W, C) or (n, d); gives (n, C, H, W) in channels_last memory, or (n, d).
    With `overwrite`, float32 values are changed in place instead of copied.
    """
    x = raw
    if raw.dim() == 4 and raw.shape[3] > 1:
        # One long row of means instead of C of them: the inner loop then runs over H*W*C numbers, not over 3.
        pixels = raw.shape[1] * raw.shape[2]
        mean, std = mean.repeat(pixels), std.repeat(pixels)
        x = raw.reshape(len(raw), pixels * raw.shape[3])
    if x.dtype != torch.float32:
        x = x.to(torch.float32).sub_(mean)
    else:
        x = x.sub_(mean) if overwrite else x - mean
    x = x.mul_(std.reciprocal()).view(raw.shape)
    return x.permute(0, 3, 1, 2) if raw.dim() == 4 else x


def statistics(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation over all but the last dimension, float32; a std of 0 becomes 1.

    uint8 values are summed as whole numbers, so the result is the same bits on every machine.
    """
    width = values.shape[-1]
    count = max(1, values.numel() // width)
    flat = values.reshape(len(values), -1)
    if values.dtype == torch.uint8:
        total = torch.zeros(flat.shape[1], dtype=torch.int64)
        square = torch.zeros_like(total)
        for part in torch.split(flat, CHUNK):
            total += part.sum(0, dtype=torch.int32)
            wide = part.to(torch.int32)
            square += wide.mul_(wide).sum(0, dtype=torch.int32)  # 1024 * 255^2 fits in 31 bits
        mean = total.view(-1, width).sum(0).double() / count
        variance = square.view(-1, width).sum(0).double() / count - mean * mean
    else:
        # Two passes: a single one loses the variance of values far from 0.
        mean = _sum(flat, width, None) / count
        variance = _sum(flat, width, mean) / count
    std = variance.clamp_min(0).sqrt()
    std = torch.where(std > 1e-6 * mean.abs().clamp_min(1e-6), std, torch.ones_like(std))
    return mean.float(), std.float()


def _sum(flat: torch.Tensor, width: int, centre: torch.Tensor | None) -> torch.Tensor:
    """Sum of the values (or, around a centre, of the squared distances) in float64."""
    total = torch.zeros(width, dtype=torch.float64)
    for part in torch.split(flat, CHUNK):
        wide = part.double().view(-1, width)
        total += wide.sum(0) if centre is None else (wide - centre).square_().sum(0)
    return total
