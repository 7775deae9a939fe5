"""Robust merging against plain loops in float64, the limits in which rules coincide, and what a minority cannot do."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedframe.core.message import Message
from fedframe.core.part import Part
from fedframe.core.round_merge import prepared
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.bucketing import Bucketing
from fedframe.methods.parts.centred_clipping import CentredClipping
from fedframe.methods.parts.coordinate_median import CoordinateMedian
from fedframe.methods.parts.fltrust import server_update, trust_scores
from fedframe.methods.parts.geometric_median import GeometricMedian, weiszfeld
from fedframe.methods.parts.krum import Krum, MultiKrum
from fedframe.methods.parts.nash import gram_matrix
from fedframe.methods.parts.nearest_mixing import NearestMixing
from fedframe.methods.parts.norm_bound import NormBound
from fedframe.methods.parts.robust import suspected
from fedframe.methods.parts.trimmed_mean import TrimmedMean
from fedframe.methods.recipes import make_method
from fedframe.network.compatibility import check_data_stay_local, check_secure_aggregation
from fedframe.settings import Settings
from tests.core.test_server import BatchNormNet
from tests.helpers import blobs, make_job, nothing
from tests.methods.toy import job_of, trained

RULES: tuple[Part, ...] = (CoordinateMedian(), TrimmedMean(), Krum(), MultiKrum(), GeometricMedian(), CentredClipping())


def server_of(folder: Path, *parts: Part) -> Server:
    job = job_of(folder, *parts)
    return Server(job, InlineEngine(job), nothing)


def draw(size: int, count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) * (1 + index / 3) for index in range(count)]


def step_of(server: Server, updates: list[Tensor], weights: list[float] | None = None) -> Tensor:
    """The step that the server's method makes of these updates."""
    replies = [
        (Message("train", 1, index, {"update": update}), weight)
        for index, (update, weight) in enumerate(zip(updates, weights or [1.0] * len(updates), strict=True))
    ]
    merger = server.merger()
    for reply, weight in prepared(server, replies):
        merger.add(reply, weight)
    return merger.finish()


def rows(updates: list[Tensor]) -> list[list[float]]:
    return [update.double().tolist() for update in updates]


def distance(one: list[float], other: list[float]) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)))


def plain_mean(some: list[list[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*some, strict=True)]


def agrees(step: Tensor, reference: list[float]) -> None:
    torch.testing.assert_close(step.double(), torch.tensor(reference, dtype=torch.float64), atol=1e-6, rtol=1e-6)


# -- each rule against a plain loop ------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 2, 5, 6, 9])
def test_median_equals_a_plain_loop(tmp_path: Path, count: int) -> None:
    server = server_of(tmp_path, CoordinateMedian())
    updates = draw(server.layout.size, count)
    agrees(step_of(server, updates), [median(column) for column in zip(*rows(updates), strict=True)])


@pytest.mark.parametrize(("count", "share", "cut"), [(5, 0.2, 1), (6, 0.2, 2), (9, 0.3, 3), (3, 0.49, 1), (7, 0.0, 0)])
def test_trimmed_mean_equals_a_plain_loop(tmp_path: Path, count: int, share: float, cut: int) -> None:
    server = server_of(tmp_path, TrimmedMean(share))
    updates = draw(server.layout.size, count)
    reference = []
    for column in zip(*rows(updates), strict=True):
        left = sorted(column)[cut : count - cut]
        reference.append(sum(left) / len(left))
    agrees(step_of(server, updates), reference)


def plain_krum(updates: list[list[float]], bad: int) -> list[int]:
    """The updates by rising score."""
    scores = []
    for i, one in enumerate(updates):
        others = sorted(distance(one, other) ** 2 for j, other in enumerate(updates) if j != i)
        scores.append(sum(others[: max(1, len(updates) - bad - 2)]))
    return sorted(range(len(updates)), key=scores.__getitem__)


@pytest.mark.parametrize(("count", "share", "bad"), [(5, 0.2, 1), (9, 0.3, 3), (10, 0.4, 3), (3, 0.2, 0), (7, 0.0, 0)])
def test_krum_and_multi_krum_equal_a_plain_loop(tmp_path: Path, count: int, share: float, bad: int) -> None:
    server = server_of(tmp_path / "a", Krum(share))
    updates = draw(server.layout.size, count, seed=count)
    order = plain_krum(rows(updates), bad)
    agrees(step_of(server, updates), rows(updates)[order[0]])
    for keep, kept in ((None, count - bad), (2, 2)):
        several = server_of(tmp_path / str(keep), MultiKrum(share, keep))
        agrees(step_of(several, updates), plain_mean([rows(updates)[index] for index in order[:kept]]))


@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_geometric_median_equals_a_plain_loop(tmp_path: Path, iterations: int) -> None:
    server = server_of(tmp_path, GeometricMedian(iterations, nu=1e-3))
    updates, alpha = draw(server.layout.size, 6), [1.0, 5.0, 2.0, 2.0, 8.0, 3.0]
    v = [0.0] * server.layout.size
    for _ in range(iterations):
        beta = [a / max(1e-3, distance(v, u)) for a, u in zip(alpha, rows(updates), strict=True)]
        v = [sum(b * x for b, x in zip(beta, column, strict=True)) / sum(beta) for column in zip(*rows(updates))]  # noqa: B905
    agrees(step_of(server, updates, alpha), v)


def test_many_steps_of_weiszfeld_find_the_geometric_median() -> None:
    """At the minimum the unit vectors to the updates cancel."""
    updates = draw(5, 7)
    shares = weiszfeld(gram_matrix(updates), torch.ones(7, dtype=torch.float64), 1e-9, 2000)
    v = sum(share * update.double() for share, update in zip(shares, updates, strict=True))
    assert isinstance(v, Tensor)
    pulls = torch.stack([(update.double() - v) / (update.double() - v).norm() for update in updates])
    assert float(pulls.sum(0).norm()) < 1e-6


@pytest.mark.parametrize(("tau", "iterations"), [(None, 1), (0.7, 1), (1.5, 3), (1e9, 1)])
def test_centred_clipping_equals_a_plain_loop_over_rounds(tmp_path: Path, tau: float | None, iterations: int) -> None:
    server = server_of(tmp_path, CentredClipping(tau, iterations))
    v = [0.0] * server.layout.size
    for round in range(3):
        updates = draw(server.layout.size, 5, seed=round)
        step = step_of(server, updates)
        for _ in range(iterations):
            distances = [distance(u, v) for u in rows(updates)]
            bound = median(distances) if tau is None else tau
            moved = [0.0] * len(v)
            for u, d in zip(rows(updates), distances, strict=True):
                moved = [m + (x - y) * min(1.0, bound / d) / 5 for m, x, y in zip(moved, u, v, strict=True)]
            v = [y + m for y, m in zip(v, moved, strict=True)]
        agrees(step, v)


@pytest.mark.parametrize("factor", [1.0, 0.5, 3.0])
def test_norm_bound_equals_a_plain_loop(tmp_path: Path, factor: float) -> None:
    server = server_of(tmp_path, NormBound(factor))
    updates, weights = draw(server.layout.size, 5), [3.0, 1.0, 4.0, 1.0, 5.0]
    norms = [distance(u, [0.0] * len(u)) for u in rows(updates)]
    bound = factor * median(norms)
    clipped = [[x * min(1.0, bound / n) for x in u] for u, n in zip(rows(updates), norms, strict=True)]
    reference = [sum(w * x for w, x in zip(weights, c, strict=True)) / 14 for c in zip(*clipped, strict=True)]
    agrees(step_of(server, updates, weights), reference)
    assert server.figures["norm_bound/clipped"] == sum(norm > bound for norm in norms)


@pytest.mark.parametrize(("count", "share", "keep"), [(5, 0.2, 4), (7, 0.3, 4), (4, 0.0, 4)])
def test_nearest_neighbour_mixing_equals_a_plain_loop(tmp_path: Path, count: int, share: float, keep: int) -> None:
    server = server_of(tmp_path, NearestMixing(share), CoordinateMedian())
    updates = draw(server.layout.size, count)
    mixed = []
    for one in rows(updates):
        near = sorted(rows(updates), key=lambda other: distance(one, other))[:keep]
        mixed.append(plain_mean(near))
    agrees(step_of(server, updates), [median(column) for column in zip(*mixed, strict=True)])


@pytest.mark.parametrize(("count", "size"), [(6, 2), (7, 2), (7, 3)])
def test_bucketing_equals_a_plain_loop(tmp_path: Path, count: int, size: int) -> None:
    server = server_of(tmp_path, Bucketing(size), CoordinateMedian())
    updates = draw(server.layout.size, count)
    order = torch.randperm(count, generator=server.generator("bucketing")).tolist()
    buckets = [[rows(updates)[i] for i in order[start : start + size]] for start in range(0, count, size)]
    means = [plain_mean(bucket) for bucket in buckets]
    agrees(step_of(server, updates), [median(column) for column in zip(*means, strict=True)])


def test_bad_clients_stay_as_many_among_fewer_buckets(tmp_path: Path) -> None:
    """Two of ten clients may be bad, and so may two of five buckets: the trimmed mean cuts two at either end."""
    server = server_of(tmp_path, Bucketing(2), TrimmedMean(0.2))
    updates = [torch.full((server.layout.size,), float(index)) for index in range(10)]
    order = torch.randperm(10, generator=server.generator("bucketing")).tolist()
    means = sorted(sum(order[start : start + 2]) / 2 for start in range(0, 10, 2))
    assert float(step_of(server, updates)[0]) == means[2]


def test_trust_scores_equal_a_plain_loop(tmp_path: Path) -> None:
    job = make_job(tmp_path, blobs(clients=3, each=60), method="fltrust", set={"fltrust": {"samples": 3}})
    server = Server(job, InlineEngine(job), nothing)
    own = server_update(server).double().tolist()
    updates = [torch.tensor(own).float() * 3, -torch.tensor(own).float(), *draw(server.layout.size, 3)]
    length = distance(own, [0.0] * len(own))
    total, step = 0.0, [0.0] * len(own)
    for u in rows(updates):
        norm = distance(u, [0.0] * len(u))
        trust = max(0.0, sum(a * b for a, b in zip(u, own, strict=True)) / norm / length)  # Eq. 2
        total += trust
        step = [s + trust * x * length / norm for s, x in zip(step, u, strict=True)]  # Eq. 3, Eq. 4
    agrees(step_of(server, updates), [s / total for s in step])
    assert server.figures["fltrust/trusted"] < 5  # the one that was turned around is not


# -- limits ------------------------------------------------------------------------------------------------------------
def test_rules_coincide_in_their_limits(tmp_path: Path) -> None:
    updates = draw(server_of(tmp_path / "0", CoordinateMedian()).layout.size, 5)

    def step(*parts: Part) -> Tensor:
        return step_of(server_of(tmp_path / str(len(list(tmp_path.iterdir()))), *parts), updates)

    mean = torch.stack(updates).double().mean(0)
    torch.testing.assert_close(step(TrimmedMean(0.0)), mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(step(MultiKrum(0.0, keep=5)), mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(step(CentredClipping(1e9)), mean, atol=1e-12, rtol=0)
    assert torch.equal(step(TrimmedMean(0.49)), step(CoordinateMedian()))
    assert torch.equal(step(MultiKrum(0.2, keep=1)), step(Krum(0.2)))
    assert torch.equal(step(Bucketing(1), CoordinateMedian()), step(CoordinateMedian()))


def test_norm_bound_that_clips_nothing_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    bounded = trained(job_of(tmp_path / "a", NormBound(1e6)), 3)
    assert torch.equal(bounded.model, trained(job_of(tmp_path / "b"), 3).model)


@pytest.mark.parametrize("part", RULES, ids=lambda part: part.name)
def test_updates_that_are_all_alike_are_the_step(tmp_path: Path, part: Part) -> None:
    parts = (CentredClipping(1e9),) if part.name == "centred_clipping" else (part,)
    server = server_of(tmp_path, *parts)
    update = draw(server.layout.size, 1)[0]
    torch.testing.assert_close(step_of(server, [update] * 5), update.double(), atol=1e-12, rtol=0)


# -- what a minority cannot do -----------------------------------------------------------------------------------------
@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(1e2, 1e12), st.booleans())
def test_minority_never_moves_a_robust_step_far_from_the_honest(seed: int, size: float, opposite: bool) -> None:
    """Two of nine send the same huge vector; the steps stay within the honest updates' reach."""
    honest = [torch.ones(6) + 0.1 * each for each in draw(6, 7, seed)]
    bad = torch.full((6,), -size if opposite else size)
    updates = [*honest, bad, bad]
    reach = max(float(each.norm()) for each in honest)
    columns = torch.stack(updates).double().sort(0).values
    assert float(((columns[4] + columns[4]) / 2).norm()) <= 2 * reach  # the median
    assert float(columns[2:7].mean(0).norm()) <= 2 * reach  # the trimmed mean
    order = plain_krum(rows(updates), 2)
    assert {*order[-2:]} == {7, 8}
    shares = weiszfeld(gram_matrix(updates), torch.ones(9, dtype=torch.float64), 1e-6, 3)
    assert float(shares[7:].sum()) * size < 3 * reach


@pytest.mark.parametrize("part", [*RULES, NormBound()], ids=lambda part: part.name)
def test_huge_update_reaches_the_model_through_no_robust_merge(tmp_path: Path, part: Part) -> None:
    server = server_of(tmp_path, part)
    honest = [torch.ones(server.layout.size) + 0.1 * each for each in draw(server.layout.size, 6)]
    step = step_of(server, [*honest, torch.full((server.layout.size,), -1e30)])
    assert float(step.norm()) < 2 * float(honest[0].norm())
    assert float(step.mean()) > 0.3


def test_buffers_are_merged_robustly_too(tmp_path: Path) -> None:
    job = make_job(tmp_path, blobs(clients=5), BatchNormNet(), method="median")
    server = Server(job, InlineEngine(job), nothing)
    assert server.layout.size > server.layout.trainable
    updates = [torch.full((server.layout.size,), value) for value in (1.0, 2.0, 3.0, 4.0, 1e9)]
    step, buffers = server.checked_step(step_of(server, updates), torch.full((1,), 1e9))
    assert {*step.tolist(), *buffers.tolist()} == {3.0}


@given(st.integers(1, 100), st.floats(0, 0.49), st.integers(0, 40))
def test_suspects_are_at_least_their_share_and_at_most_what_a_rule_bears(clients: int, share: float, most: int) -> None:
    found = suspected(clients, share, most)
    assert 0 <= found <= most
    assert found == most or found >= share * clients - 1e-6


def test_update_of_zero_is_trusted_by_nobody() -> None:
    trust, lengths = trust_scores([torch.zeros(3), torch.ones(3)], torch.ones(3, dtype=torch.float64))
    assert trust.tolist() == pytest.approx([0, 1])
    assert lengths.tolist() == pytest.approx([0, math.sqrt(3)])


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["krum+scaffold", "median+gmv", "rfa+fednh"])
def test_uploads_that_would_be_summed_unguarded_are_refused(method: str) -> None:
    with pytest.raises(SettingError, match=r"guards updates, and what .* would be summed unguarded"):
        make_method(method, {})


def test_bucketing_without_a_robust_merge_is_refused() -> None:
    with pytest.raises(SettingError, match="'bucketing' prepares updates for a robust merge, and 'mean' is none"):
        make_method("fedavg+bucketing", {})


@pytest.mark.parametrize("method", ["krum", "median", "norm_bound", "rfa+nnm", "median+bucketing"])
def test_secure_sums_are_refused_by_name(method: str) -> None:
    with pytest.raises(SettingError, match="lets the server see sums only"):
        check_secure_aggregation(Settings(secure=True), make_method(method, {}), 4)


def test_fltrust_over_a_network_is_refused() -> None:
    with pytest.raises(SettingError, match="'fltrust' needs clients' training data on the server"):
        check_data_stay_local(make_method("fltrust", {}))


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("krum", {"share": 0.5}),
        ("trimmed_mean", {"share": -0.1}),
        ("multi_krum", {"keep": 0}),
        ("rfa", {"nu": 0}),
        ("centred_clipping", {"tau": -1}),
        ("norm_bound", {"factor": 0}),
        ("fltrust", {"samples": 0}),
    ],
)
def test_bad_setting_is_refused_in_one_sentence(method: str, values: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=rf"^{method}\.\w+ = [^\n]*\.$"):
        make_method(method, {method: values})
