"""FedAwS: the spread-out step by hand and against a plain loop, what it leaves alone, and whom it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedframe.errors import SettingError
from fedframe.methods.parts.fedaws import FedAwS, spread_out
from fedframe.methods.recipes import make_method
from tests.methods.toy import job_of, trained


def nearest(weight: Tensor) -> float:
    u = F.normalize(weight, dim=1)
    return float(1 - (u @ u.T).fill_diagonal_(-1).max())


def test_two_classes_by_hand() -> None:
    """At 60 degrees d = .5; of the margin 1, .5 is missing. Each direction has the gradient 2 * 2 * .5 (u' - .5 u)."""
    weight = torch.tensor([[3.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64)
    moved = spread_out(weight, 0.1, 1.0, 10)
    tangent = torch.tensor([0.0, math.sqrt(0.75)], dtype=torch.float64)  # u_2 - .5 u_1
    expected = torch.tensor([1.0, 0.0], dtype=torch.float64) - 0.1 * 2.0 * tangent
    torch.testing.assert_close(moved[0], 3 * expected / expected.norm())
    torch.testing.assert_close(moved.norm(dim=1), weight.norm(dim=1))


@pytest.mark.parametrize("k", [1, 2, 10])
def test_step_equals_a_plain_loop_over_the_nearest_pairs(k: int) -> None:
    torch.manual_seed(3)
    weight = torch.randn(5, 4, dtype=torch.float64) + 0.5
    free = weight.clone().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for c in range(5):
        u = free[c] / free[c].norm()
        distances = [(1 - u @ free[o] / free[o].norm(), o) for o in range(5) if o != c]
        for distance, _ in sorted(distances, key=lambda pair: float(pair[0].detach()))[:k]:
            loss = loss + max(torch.zeros((), dtype=torch.float64), 0.9 - distance) ** 2
    (gradient,) = torch.autograd.grad(loss, free)
    length = weight.norm(dim=1, keepdim=True)
    expected = weight / length - 0.05 * gradient * length  # the gradient of a direction is ||w|| times that of w
    expected = length * expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(spread_out(weight, 0.05, 0.9, k), expected, atol=1e-10, rtol=1e-8)


def test_classes_beyond_the_margin_stay_where_they_are() -> None:
    weight = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert torch.equal(spread_out(weight, 0.1, 1.0, 10), weight)


def test_steps_spread_classes_out_until_the_margin() -> None:
    torch.manual_seed(0)
    weight = torch.randn(10, 16, dtype=torch.float64) + 1
    before = nearest(weight)
    for _ in range(40):
        weight = spread_out(weight, 0.1, 1.0, 10)
    assert before < 0.6
    assert nearest(weight) > 0.95


def test_fedaws_with_weight_zero_is_fedavg(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedAwS(weight=0.0)), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b"), 2).model)


def test_server_turns_the_class_vectors_of_the_merged_model_and_nothing_else(tmp_path: Path) -> None:
    plain = trained(job_of(tmp_path / "a"), 1)
    ours = trained(job_of(tmp_path / "b", FedAwS(weight=2.0, margin=1.2)), 1)
    expected = spread_out(plain.tensor("head.weight").double(), 2.0 * 0.1, 1.2, 10).float()
    torch.testing.assert_close(ours.tensor("head.weight"), expected)
    assert not torch.equal(ours.tensor("head.weight"), plain.tensor("head.weight"))
    ours.set_tensor("head.weight", plain.tensor("head.weight"))
    assert torch.equal(ours.model, plain.model)


def test_step_follows_the_learning_rate_of_the_round(tmp_path: Path) -> None:
    settings = {"lr_schedule": "step:0@0.5", "rounds": 2}  # from the second round on the learning rate is zero
    server = trained(job_of(tmp_path, FedAwS(weight=5.0, margin=2.0), **settings), 1)
    before = server.model.clone()
    server.run_round(2, lambda *_: None)
    torch.testing.assert_close(server.model, before)


@pytest.mark.parametrize("head", ["etf", "orthonormal", "fednh"])
def test_frozen_classifier_is_refused_by_name(head: str) -> None:
    with pytest.raises(SettingError, match=rf"'fedaws' moves .* those of '{head}' are fixed; leave one of them out"):
        make_method(f"fedaws+{head}", {})


def test_classifier_on_the_client_is_refused() -> None:
    with pytest.raises(SettingError, match="'fedaws' moves class vectors of a shared model, and here"):
        make_method("fedaws+fedproto", {})
