"""Random crops and flips of a whole batch at once: one gather, no loop over images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fedframe.errors import SettingError, nearest

PADDING = 4  # pixels on every side, as in the CIFAR papers


@dataclass(frozen=True)
class Augment:
    """Shift by up to `padding` pixels (zeros move in) and mirror with probability 1/2.

    A zero is the mean of normalised pixels, so it is neither black nor white there.
    """

    padding: int = 0
    flip: bool = False

    def __call__(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """An augmented copy of (n, C, H, W) images, in channels_last memory; vectors are returned unchanged."""
        if x.dim() != 4 or not (self.padding or self.flip):
            return x
        n, channels, height, width = x.shape
        pad = self.padding
        stored = x.permute(0, 2, 3, 1)  # NHWC: a pixel's channels lie together, so a pixel is one row to gather
        row, column = torch.arange(height)[None, :], torch.arange(width)[None, :]  # (1, H), (1, W)
        if pad:
            stored = F.pad(stored, (0, 0, pad, pad, pad, pad))
            shift = torch.randint(2 * pad + 1, (2, n, 1), generator=generator)
            row, column = row + shift[0], column + shift[1]
        if self.flip:
            mirrored = torch.rand(n, 1, generator=generator) < 0.5
            column = torch.where(mirrored, column.flip(1), column)
        high, wide = height + 2 * pad, width + 2 * pad
        image = torch.arange(n)[:, None, None] * (high * wide)
        index = image + row[:, :, None] * wide + column[:, None, :]  # (n, H, W)
        pixels = stored.reshape(-1, channels).index_select(0, index.reshape(-1))
        return pixels.view(n, height, width, channels).permute(0, 3, 1, 2)


def read_augment(text: str) -> Augment:
    """Parse a spec: none, flip, crop, crop:4, crop+flip."""
    padding, flip = 0, False
    for part in text.strip().split("+"):
        name, colon, number = part.partition(":")
        if name not in ("none", "crop", "flip"):
            hint = nearest(name, ("none", "crop", "flip"))
            forms = hint if hint.startswith("did you") else "write none, flip, crop, crop:4 or crop+flip."
            raise SettingError(f"augment {name!r} is unknown: {forms}")
        if name == "crop":
            if colon and (not number.isdecimal() or int(number) < 1):
                raise SettingError(f"augment {part!r} needs a whole number of pixels above 0, e.g. crop:4.")
            padding = int(number) if colon else PADDING
        elif colon:
            raise SettingError(f"augment {part!r}: {name} takes no number.")
        flip |= name == "flip"
    return Augment(padding, flip)
