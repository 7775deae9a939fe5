from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedframe.core.optimizers import FusedSGD, make_optimizer
from fedframe.settings import Settings


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.sampled_from([0.0, 0.5, 0.9]), st.booleans(), st.sampled_from([0.0, 0.01]), st.integers(0, 10_000))
def test_fused_sgd_equals_torch_bit_for_bit(momentum: float, nesterov: bool, decay: float, seed: int) -> None:
    torch.manual_seed(seed)
    nesterov = nesterov and momentum > 0
    first = [nn.Parameter(torch.randn(shape)) for shape in [(3, 4), (17,), (2, 3, 5, 5)]]
    second = [nn.Parameter(p.detach().clone()) for p in first]
    ours = FusedSGD(first, 0.1, momentum, nesterov, decay)
    torchs = torch.optim.SGD(second, lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=True)
    for _ in range(4):
        for a, b in zip(first, second, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        ours.step()
        torchs.step()
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    ours.zero_grad()
    assert all(p.grad is None for p in first)


def test_sgd_against_the_formula_in_plain_numbers() -> None:
    weight, velocity, lr, momentum, decay = 1.0, None, 0.1, 0.9, 0.05
    parameter = nn.Parameter(torch.tensor([weight]))
    optimizer = FusedSGD([parameter], lr, momentum, False, decay)
    for gradient in (0.3, -0.2, 0.7):
        parameter.grad = torch.tensor([gradient])
        optimizer.step()
        change = gradient + decay * weight
        velocity = change if velocity is None else momentum * velocity + change
        weight -= lr * velocity
        assert float(parameter.detach()) == pytest.approx(weight, abs=1e-6)


def test_weight_whose_first_gradient_comes_late_starts_its_momentum_then() -> None:
    first = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    second = [nn.Parameter(p.detach().clone()) for p in first]
    ours = FusedSGD(first, 0.1, 0.9, False, 0.01)
    torchs = torch.optim.SGD(second, lr=0.1, momentum=0.9, weight_decay=0.01, fused=False)  # the fused one fails here
    for step in range(4):
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            a.grad = None if i == 1 and step < 2 else torch.randn(a.shape)
            b.grad = None if a.grad is None else a.grad.clone()
        ours.step()
        torchs.step()
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(6, 3, 5, 5), (3, 1, 5, 5), (7, 5, 1, 1), (17,)])
def test_weights_that_lie_channels_last_move_as_torch_moves_them(shape: tuple[int, ...]) -> None:
    def laid(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    draw = torch.Generator().manual_seed(3)
    first, second = (nn.Parameter(laid(torch.randn(shape, generator=torch.Generator().manual_seed(4)))) for _ in "12")
    ours = FusedSGD([first], 0.1, 0.9, True, 0.01)
    torchs = torch.optim.SGD([second], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True)
    for step in range(4):
        gradient = torch.randn(shape, generator=draw)
        first.grad, second.grad = (laid(gradient) if step < 2 else gradient.clone() for _ in "12")  # also another order
        ours.step()
        torchs.step()
        assert torch.equal(first, second)
        assert first.stride() == second.stride()


def test_momentum_survives_a_trip_through_its_state() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = FusedSGD([parameter], 0.1, 0.9, False, 0.0)
    parameter.grad = torch.ones(3)
    optimizer.step()
    twin = FusedSGD([parameter], 0.1, 0.9, False, 0.0)
    twin.load_state_dict(optimizer.state_dict())
    assert torch.equal(twin.velocity[0], optimizer.velocity[0])


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_is_torchs_own(name: str, kind: type) -> None:
    made = make_optimizer(Settings(optimizer=name), [nn.Parameter(torch.zeros(1))], 0.1)
    assert type(made) is kind


@pytest.mark.slow
def test_sgd_runs_without_the_compiler() -> None:
    code = (
        "import sys, torch, fedframe.api; from fedframe.core.optimizers import FusedSGD\n"
        "p = torch.nn.Parameter(torch.zeros(2)); p.grad = torch.ones(2); FusedSGD([p], .1, .9, False, 0.).step()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
