from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedframe.core.layout import LINE, make_layout, named_tensors
from fedframe.core.model import assign_roles

shapes = st.lists(st.lists(st.integers(1, 5), min_size=0, max_size=4), min_size=1, max_size=6)


@pytest.mark.slow
@given(shapes, shapes)
def test_flatten_then_view_gives_every_tensor_back(trainable: list[list[int]], buffers: list[list[int]]) -> None:
    first = [(f"t{i}", torch.randn(shape)) for i, shape in enumerate(trainable)]
    second = [(f"b{i}", torch.randn(shape)) for i, shape in enumerate(buffers)]
    layout = make_layout(first, second)
    flat = layout.flatten(dict(first + second))
    for name, tensor in first + second:
        assert torch.equal(layout.views(flat)[name], tensor)
    assert all(entry.start % LINE == 0 for entry in layout.entries)
    assert all((entry.start < layout.trainable) == entry.name.startswith("t") for entry in layout.entries)
    assert flat.abs().sum().isclose(sum(t.abs().sum() for _, t in first + second))  # type: ignore[arg-type]


def test_bound_model_lives_in_the_flat_vector_and_keeps_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    roles = assign_roles(model, (), "average")
    flat = roles.layout.bind(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert named_tensors(model)["0.weight"].is_contiguous(memory_format=torch.channels_last)
    flat.zero_()
    assert float(model.state_dict()["0.weight"].abs().sum()) == 0.0
    assert float(model.state_dict()["1.running_var"].abs().sum()) == 0.0


def test_batch_norm_statistics_are_averaged_and_its_counter_never_travels() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    names = {entry.name for entry in assign_roles(model, (), "average").layout.entries}
    assert {"1.running_mean", "1.running_var"} <= names
    assert "1.num_batches_tracked" not in names
    kept = assign_roles(model, (), "private")
    assert {"1.running_mean", "1.running_var"} <= set(kept.private)
    assert set(assign_roles(model, (), "fixed").fixed) >= {"1.running_mean", "1.running_var"}


def test_frozen_and_private_weights_do_not_travel() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    model[1].weight.requires_grad_(False)
    roles = assign_roles(model, {"0.bias"}, "average")
    assert {entry.name for entry in roles.layout.entries} == {"0.weight", "1.bias"}
    assert roles.private == ("0.bias",)
    assert roles.fixed == ("1.weight",)
