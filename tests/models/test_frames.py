"""Fixed classifiers: norms, angles and zeros of every size, and refusals that help."""

from __future__ import annotations

import math
import re
from typing import get_args

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedframe.errors import SettingError
from fedframe.models import frames
from fedframe.models.frames import Init, angle_spread, orthonormal, random_frame, simplex_etf, sparse_etf, sparsify

SEEDS = st.integers(0, 2**40)
QUICK = settings(max_examples=40)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cosines(frame: Tensor) -> Tensor:
    exact = frame.double()
    return exact @ exact.T


def simplex_cosines(classes: int) -> Tensor:
    """Entry by entry, as the definition says."""
    expected = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64)
    return expected.fill_diagonal_(1)


def off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())


@QUICK
@given(st.integers(1, 40), st.integers(0, 30), SEEDS)
def test_orthonormal_frames_are_orthonormal(classes: int, more: int, seed: int) -> None:
    frame = orthonormal(classes, classes + more, seeded(seed))
    assert frame.shape == (classes, classes + more)
    assert frame.dtype == torch.float32
    assert off(cosines(frame), torch.eye(classes, dtype=torch.float64)) < 1e-6


@QUICK
@given(st.integers(2, 40), st.integers(-1, 30), SEEDS)
def test_simplex_etf_has_its_angles_in_every_dimension(classes: int, more: int, seed: int) -> None:
    frame = simplex_etf(classes, classes + more, seeded(seed))
    assert frame.shape == (classes, classes + more)
    assert frame.dtype == torch.float32
    assert off(cosines(frame), simplex_cosines(classes)) < 1e-6
    assert float(frame.double().sum(0).abs().max()) < 1e-5  # the class vectors sum to zero


@pytest.mark.slow
@QUICK
@given(st.integers(2, 24), st.integers(-1, 60), st.floats(0, 0.95), st.floats(0.01, 100), SEEDS)
def test_sparse_etf_is_right_or_refused_with_a_sparsity_that_works(
    classes: int, more: int, sparsity: float, norm: float, seed: int
) -> None:
    dim = classes + more
    try:
        frame = sparse_etf(classes, dim, sparsity, seeded(seed), norm=norm)
    except SettingError as error:
        advice = re.search(r"sparsity = (\S+) works", str(error))
        assert advice is not None
        assert float(advice[1]) < sparsity
        sparsity = float(advice[1])
        frame = sparse_etf(classes, dim, sparsity, seeded(seed), norm=norm)
    assert frame.shape == (classes, dim)
    assert frame.dtype == torch.float32
    assert off(cosines(frame / norm), simplex_cosines(classes)) < 2e-6
    assert ((frame == 0).sum(1) == round(sparsity * dim)).all()
    used = (frame != 0).sum(0)
    assert not (used == 1).any()  # no feature is read by one class alone


@pytest.mark.slow
def test_the_refused_sparsity_is_named_with_the_largest_that_works() -> None:
    with pytest.raises(
        SettingError, match=r"sparsity = 0\.9 leaves 60 weights in 64 features.*sparsity = 0\.8\d? works"
    ):
        sparse_etf(10, 64, 0.9, seeded(0))


def test_sparse_etf_of_the_papers_size_is_far_more_even_than_the_papers() -> None:
    frame = sparse_etf(100, 512, 0.6, seeded(0), norm=0.1)
    unit = torch.nn.functional.normalize(frame.double())
    first, second = torch.triu_indices(100, 100, 1)
    angles = torch.rad2deg(torch.arccos((unit @ unit.T)[first, second]))
    assert float(angles.var()) < 1e-6  # the paper's Table 6: 0.09 to 1.21
    assert torch.allclose(frame.norm(dim=1), torch.tensor(0.1), atol=1e-7)
    assert (frame != 0).any(0).all()  # every feature is used


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "dim", "sparsity"), [(30, 64, 0.9), (10, 16, 0.8), (10, 64, 0.95)])
def test_best_effort_has_the_zeros_that_were_asked_for_and_nearly_the_angles(
    classes: int, dim: int, sparsity: float
) -> None:
    with pytest.raises(SettingError):
        sparse_etf(classes, dim, sparsity, seeded(0))
    frame = sparse_etf(classes, dim, sparsity, seeded(0), norm=2.0, best_effort=True)
    assert torch.equal(frame, sparse_etf(classes, dim, sparsity, seeded(0), norm=2.0, best_effort=True))
    assert ((frame == 0).sum(1) == round(sparsity * dim)).all()
    torch.testing.assert_close(frame.norm(dim=1), torch.full((classes,), 2.0))
    random = torch.randn(classes, dim, generator=seeded(1)).masked_fill(frame == 0, 0.0)
    errors = [
        float((cosines(torch.nn.functional.normalize(each)) - simplex_cosines(classes)).norm())
        for each in (frame, random)
    ]
    assert errors[0] < errors[1] / 2


def test_best_effort_changes_nothing_where_an_etf_exists() -> None:
    exact, same = (sparse_etf(10, 64, 0.6, seeded(3), best_effort=each) for each in (False, True))
    assert torch.equal(exact, same)


@QUICK
@given(st.integers(3, 12), SEEDS)
def test_angle_spread_is_that_of_a_plain_loop(classes: int, seed: int) -> None:
    frame = torch.randn(classes, 6, generator=seeded(seed)).double()
    angles = [
        math.degrees(math.acos(float(frame[i] @ frame[j] / (frame[i].norm() * frame[j].norm()))))
        for i in range(classes)
        for j in range(i)
    ]
    assert angle_spread(frame) == pytest.approx((min(angles), max(angles)), abs=1e-6)


def test_large_frames_take_the_float32_path_to_the_same_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "LARGE_FRAME", 0)
    frame = sparse_etf(20, 64, 0.5, seeded(3))
    assert off(cosines(frame), simplex_cosines(20)) < 1e-6


def test_a_frame_that_was_not_found_is_refused_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_STEPS", 3)
    with pytest.raises(SettingError, match="sparsity = 0 works"):
        sparse_etf(10, 64, 0.5, seeded(0))


@QUICK
@given(st.integers(2, 20), st.integers(-1, 20), SEEDS)
def test_no_sparsity_is_the_simplex_etf(classes: int, more: int, seed: int) -> None:
    dense = simplex_etf(classes, classes + more, seeded(seed))
    assert torch.equal(sparse_etf(classes, classes + more, 0.0, seeded(seed), norm=0.5), 0.5 * dense)


@pytest.mark.slow
@QUICK
@given(st.integers(3, 12), st.integers(4, 20), SEEDS)
def test_one_seed_gives_one_frame_and_another_seed_another(classes: int, more: int, seed: int) -> None:
    dim = 2 * classes + more

    def make(at: int) -> list[Tensor]:
        drawn = [random_frame(classes, dim, init, seeded(at)) for init in get_args(Init)]
        sparse = [sparse_etf(classes, dim, 0.2, seeded(at)), sparsify(drawn[0], 0.5, seeded(at))]
        return [orthonormal(classes, dim, seeded(at)), simplex_etf(classes, dim, seeded(at)), *drawn, *sparse]

    for first, again, other in zip(make(seed), make(seed), make(seed + 1), strict=True):
        assert torch.equal(first, again)
        assert not torch.allclose(first, other, atol=1e-3)


def test_frames_have_the_same_bits_for_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append((sparse_etf(60, 256, 0.6, seeded(0)), simplex_etf(100, 512, seeded(0))))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.slow
def test_rotations_are_uniform() -> None:
    generator = seeded(0)
    first = torch.stack([orthonormal(3, 4, generator)[0] for _ in range(2000)])  # uniform on the sphere
    assert float(first.mean(0).abs().max()) < 0.05
    assert off(first.T @ first / len(first), torch.eye(4) / 4) < 0.03


@pytest.mark.parametrize("init", get_args(Init))
def test_random_frames_have_the_scale_of_torch_and_may_be_thinned_out(init: Init) -> None:
    frame = random_frame(50, 400, init, seeded(0))
    bounds = {"xavier": (6 / 450) ** 0.5, "kaiming": (6 / 400) ** 0.5, "uniform": 1.0}
    if init in bounds:
        assert 0.98 * bounds[init] < float(frame.abs().max()) <= bounds[init]
    if init == "gaussian":
        assert float(frame.std()) == pytest.approx(1, abs=0.02)
    assert torch.equal(sparsify(frame, 0.0, seeded(1)), frame)
    thin = sparsify(frame, 0.75, seeded(1))
    assert ((thin == 0).sum(1) == 300).all()
    assert torch.equal(thin[thin != 0], frame[thin != 0])
    assert torch.allclose(sparsify(frame, 0.75, seeded(1), norm=0.3).norm(dim=1), torch.tensor(0.3))


def test_features_that_are_too_small_are_refused_with_the_size_that_is_needed() -> None:
    with pytest.raises(SettingError, match="at least 10 numbers, not 9"):
        orthonormal(10, 9, seeded(0))
    for sparsity in (0.0, 0.3):
        with pytest.raises(SettingError, match="at least 9 numbers, not 8"):
            sparse_etf(10, 8, sparsity, seeded(0))
    with pytest.raises(SettingError, match="at least 2 classes, not 1"):
        simplex_etf(1, 8, seeded(0))


def test_settings_that_are_no_share_or_no_length_are_refused() -> None:
    for sparsity in (-0.1, 1.0, float("nan")):
        with pytest.raises(SettingError, match="choose one from 0 to below 1"):
            sparse_etf(4, 8, sparsity, seeded(0))
    for norm in (0.0, float("inf"), float("nan")):
        with pytest.raises(SettingError, match="choose one above 0"):
            sparse_etf(4, 8, 0.2, seeded(0), norm=norm)
    with pytest.raises(SettingError, match="leaves no weight of 8 features"):
        sparsify(torch.ones(4, 8), 0.99, seeded(0))


@QUICK
@given(st.integers(2, 20), st.integers(2, 60), st.floats(0.05, 1), SEEDS)
def test_masks_are_balanced_and_every_pair_overlaps(classes: int, dim: int, share: float, seed: int) -> None:
    keep = max(1, round(share * dim))
    mask = frames._draw_mask(classes, dim, keep, seeded(seed))
    assume(mask is not None)
    assert mask is not None
    assert (mask.sum(1) == keep).all()
    assert not (mask.sum(0) == 1).any()
    assert ((mask.double() @ mask.double().T) > 0).all()
    if keep * classes >= 3 * dim:
        assert (mask.sum(0) >= 2).all()
