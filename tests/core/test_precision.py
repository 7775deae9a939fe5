"""Computing in fewer bits changes the backbone's arithmetic and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedframe
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.precision import FIRST_SCALE, GROW_AFTER, LossScale, full_precision, precision_note
from fedframe.errors import SettingError
from fedframe.util.files import read_tensors
from tests.helpers import blobs, make_job


def test_backbone_computes_in_bfloat16_and_gives_float32(tmp_path: Path) -> None:
    job = make_job(tmp_path, precision="bf16")
    model, inputs = job.fresh_model(), torch.randn(6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model.backbone(inputs).float()
    found = model(inputs)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    with full_precision(model):
        assert torch.equal(model(inputs), model.backbone(inputs))
        assert not torch.equal(model(inputs), expected)
    assert torch.equal(model(inputs), expected)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "spherefed", "fedetf"])
def test_any_number_of_workers_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data": blobs(),
        "model": "mlp:8",
        "partition": "user",
        "precision": "bf16",
        "progress": False,
    }
    whole = fedframe.run(method, rounds=2, workers=1, out=tmp_path / "one", **given)
    fedframe.run(method, rounds=2, workers=2, out=tmp_path / "two", **given)
    plain = fedframe.run(method, rounds=2, out=tmp_path / "plain", **{**given, "precision": "float32"})
    one, two, other = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("one", "two", "plain"))
    assert {name: tensor.dtype for name, tensor in one.items()} == {n: t.dtype for n, t in other.items()}
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert whole.scores["generic"]["final"] == pytest.approx(plain.scores["generic"]["final"], abs=0.1)


def test_sums_for_closed_forms_are_computed_in_float32(tmp_path: Path) -> None:
    small, full = (make_job(tmp_path / p, method="spherefed", precision=p) for p in ("bf16", "float32"))
    server = {"model": small.roles.layout.bind(small.fresh_model()).clone()}
    request = fedframe.core.Message("statistics", 1, -1, server, {"lr": 0.1})
    a, b = (ClientRuntime(job).perform(request, 0).tensors for job in (small, full))
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_float16_needs_a_gpu_and_slow_bfloat16_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"precision = 'fp16' is for GPUs.*use bf16"):
        make_job(tmp_path, precision="fp16")
    for has, said in ((True, False), (False, True)):
        monkeypatch.setattr("fedframe.core.precision.has_bfloat16_units", lambda has=has: has)
        assert ("slower" in precision_note("bf16", "cpu")) == said
        assert any("slower" in note for note in make_job(tmp_path, precision="bf16").federation.notes) == said
    assert not precision_note("float32", "cpu")


def test_scaled_gradient_is_the_gradient() -> None:
    weight = nn.Parameter(torch.tensor([1.5, -2.0], dtype=torch.float64))
    scale = LossScale()
    scale.backward((weight**2).sum(), [weight])
    assert weight.grad is not None
    assert torch.equal(weight.grad, 2 * weight.detach())  # a power of two rounds nothing
    assert not scale.overflowed


def test_overflow_leaves_the_step_out_and_halves_the_scale() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    scale = LossScale()
    scale.backward((weight * float("inf")).sum(), [weight])
    assert scale.overflowed
    assert scale.factor == FIRST_SCALE / 2
    assert weight.grad is not None
    assert not weight.grad.any()
    for _ in range(GROW_AFTER):
        weight.grad = None
        scale.backward(weight.sum(), [weight])
    assert not scale.overflowed
    assert scale.factor == FIRST_SCALE


def test_overflowed_step_changes_no_weight_in_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of float16, with float32 in its place: no processor here computes in float16."""
    monkeypatch.setattr("fedframe.core.precision.check_precision", lambda *_: None)
    monkeypatch.setattr("fedframe.jobs.build.check_precision", lambda *_: None)
    monkeypatch.setattr("fedframe.jobs.build.COMPUTE_TYPES", {})
    scaled, plain = (make_job(tmp_path / p, precision=p, momentum=0.9) for p in ("fp16", "float32"))
    start = scaled.roles.layout.bind(scaled.fresh_model()).clone()
    request = fedframe.core.Message("train", 1, -1, {"model": start}, {"lr": 0.1})
    a, b = (ClientRuntime(job).perform(request, 0).tensors["update"] for job in (scaled, plain))
    assert torch.equal(a, b)
    monkeypatch.setattr(LossScale, "backward", lambda self, loss, weights: overflow(self, loss))
    assert not ClientRuntime(scaled).perform(request, 0).tensors["update"].any()


def overflow(scale: LossScale, loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    scale.overflowed = True
