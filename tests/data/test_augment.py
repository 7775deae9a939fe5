from __future__ import annotations

import pytest
import torch

from fedframe.data.augment import Augment, read_augment
from fedframe.errors import SettingError
from tests.data.conftest import sentence


def plain(x: torch.Tensor, padding: int, flip: bool, generator: torch.Generator) -> torch.Tensor:
    """The same draws, image by image."""
    n, c, h, w = x.shape
    shift = torch.randint(2 * padding + 1, (2, n, 1), generator=generator) if padding else torch.zeros(2, n, 1).long()
    mirrored = torch.rand(n, 1, generator=generator) < 0.5 if flip else torch.zeros(n, 1).bool()
    out = torch.zeros(n, c, h, w)
    for i in range(n):
        padded = torch.zeros(c, h + 2 * padding, w + 2 * padding)
        padded[:, padding : padding + h, padding : padding + w] = x[i]
        top, left = int(shift[0, i]), int(shift[1, i])
        image = padded[:, top : top + h, left : left + w]
        out[i] = image.flip(2) if mirrored[i] else image
    return out


@pytest.mark.parametrize("spec", ["crop+flip", "crop:2", "flip", "crop:1+flip"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_augmented_as_image_by_image(spec: str, channels: int) -> None:
    x = torch.rand(20, channels, 6, 5).to(memory_format=torch.channels_last)
    augment = read_augment(spec)
    found = augment(x, torch.Generator().manual_seed(3))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, plain(x, augment.padding, augment.flip, torch.Generator().manual_seed(3)))


def test_none_and_vectors_pass_as_they_are() -> None:
    x = torch.rand(4, 3, 5, 5)
    assert read_augment("none")(x, torch.Generator()) is x
    vectors = torch.rand(4, 7)
    assert read_augment("crop+flip")(vectors, torch.Generator()) is vectors


def test_specs_are_read() -> None:
    assert read_augment("crop+flip") == Augment(4, True)
    assert read_augment("crop:2") == Augment(2, False)
    assert read_augment("none") == Augment()


@pytest.mark.parametrize(
    ("spec", "part"),
    [("flop", "did you mean 'flip'"), ("rotate", "crop+flip"), ("crop:x", "crop:4"), ("flip:2", "takes no number")],
)
def test_a_bad_spec_ends_in_a_sentence(spec: str, part: str) -> None:
    assert part in sentence(lambda: read_augment(spec), SettingError)
