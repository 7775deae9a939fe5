from __future__ import annotations

import pytest
import torch

from fedframe.data.source import normalised, statistics


@pytest.mark.parametrize("shape", [(5, 4, 3, 3), (5, 4, 3, 1), (5, 7), (0, 4, 3, 3), (0, 7)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_normalised_is_minus_mean_by_std_in_model_layout(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    raw = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 255).to(dtype)
    before = raw.clone()
    mean, std = torch.rand(shape[-1]) * 100, torch.rand(shape[-1]) + 0.5
    expected = (raw.double() - mean.double()) / std.double()
    found = normalised(raw, mean, std)
    if len(shape) == 4:
        assert found.is_contiguous(memory_format=torch.channels_last)
        found = found.permute(0, 2, 3, 1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(raw, before)


def test_overwrite_changes_float_values_in_place() -> None:
    raw = torch.ones(2, 3)
    assert normalised(raw, torch.ones(3), torch.ones(3), overwrite=True).data_ptr() == raw.data_ptr()


@pytest.mark.parametrize("shape", [(3000, 4, 5, 3), (3000, 6)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_statistics_are_those_of_float64(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 255).to(dtype)
    mean, std = statistics(values)
    flat = values.double().reshape(-1, shape[-1])
    torch.testing.assert_close(mean.double(), flat.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(std.double(), flat.std(0, correction=0), rtol=1e-6, atol=1e-6)


def test_a_constant_value_has_std_one() -> None:
    for values in (torch.full((10, 2), 0.1), torch.full((10, 2), 7, dtype=torch.uint8), torch.zeros(10, 2)):
        assert statistics(values)[1].tolist() == [1.0, 1.0]


def test_values_far_from_zero_keep_their_spread() -> None:
    values = torch.tensor([[1e6], [1e6 + 4]])
    assert statistics(values)[1].item() == pytest.approx(2)
