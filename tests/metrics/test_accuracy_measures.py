"""Spread, confusion, calibration, degeneration, traffic, draws and FLOPs against plain counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.analysis.examination import compact, significant
from fedframe.core.layout import make_layout
from fedframe.metrics.accuracy import confusion, per_class, spread
from fedframe.metrics.calibration import Calibration
from fedframe.metrics.collapse import class_means
from fedframe.metrics.cost import bytes_by_part, count_flops, part_of
from fedframe.metrics.degeneration import pruning_curve, sorted_curves
from fedframe.metrics.embedding import project_to_plane
from fedframe.metrics.sampling import affordable_clients, balanced_rows, sample_clients, sample_rows
from tests.helpers import images, make_job


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_spread_equals_numpy(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    worst = sorted(values)[: math.ceil(len(values) / 10)]
    assert found["std"] == pytest.approx(np.std(values), abs=1e-12)
    assert found["worst_tenth"] == pytest.approx(np.mean(worst))
    assert (found["min"], found["max"]) == (min(values), max(values))


def test_spread_over_nobody_is_none() -> None:
    assert spread([]) is None


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_confusion_and_accuracy_by_class_equal_a_count(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = (torch.tensor(column) for column in zip(*pairs, strict=True))
    matrix = confusion(labels, predicted, 5)
    accuracies = per_class(matrix)
    for i in range(5):
        mine = [p for y, p in pairs if y == i]
        assert matrix[i].tolist() == [mine.count(j) for j in range(5)]
        assert accuracies[i] == (mine.count(i) / len(mine) if mine else None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_calibration_error_equals_guo_et_al_in_a_plain_loop(pairs: list[tuple[float, bool]], bins: int) -> None:
    calibration = Calibration(bins)
    for start in range(0, len(pairs), 7):  # in batches
        p, right = zip(*pairs[start : start + 7], strict=True)
        calibration.add(torch.tensor(p, dtype=torch.float64), torch.tensor(right))
    found = calibration.result()
    assert found is not None
    error = 0.0
    for m in range(bins):
        mine = [(p, r) for p, r in pairs if max(0, min(bins - 1, math.ceil(p * bins) - 1)) == m]
        assert found["bins"][m]["count"] == len(mine)
        if mine:
            accuracy, confidence = np.mean([r for _, r in mine]), np.mean([p for p, _ in mine])
            error += len(mine) / len(pairs) * float(abs(accuracy - confidence))
            assert found["bins"][m]["accuracy"] == pytest.approx(accuracy)
            assert found["bins"][m]["confidence"] == pytest.approx(confidence)
        assert (found["bins"][m]["from"], found["bins"][m]["to"]) == pytest.approx((m / bins, (m + 1) / bins))
    assert found["error"] == pytest.approx(error, abs=1e-12)
    assert Calibration().result() is None


def test_sorted_means_and_variances_equal_a_plain_loop() -> None:
    draw = np.random.default_rng(0)
    y = np.array([0] * 5 + [1] * 7 + [3])  # class 2 has no sample, class 3 one
    h = draw.normal(0, 1, (len(y), 6)).astype(np.float32)
    found = sorted_curves(torch.from_numpy(h), torch.from_numpy(y), 4)
    assert found is not None
    means, variances = [], []
    for c in (0, 1):
        mine = h[y == c].astype(np.float64)
        mu, var = mine.mean(0), mine.var(0)
        order = sorted(range(6), key=lambda d: -abs(mu[d]))
        means.append([abs(mu[d]) for d in order])
        variances.append([var[d] for d in order])
        np.testing.assert_allclose(found["sorted_means"][c], means[-1], rtol=1e-12)
        np.testing.assert_allclose(found["variances"][c], variances[-1], rtol=1e-12)
    assert found["sorted_means"][2:] == [[], []]
    np.testing.assert_allclose(found["variance"], np.mean(variances, axis=0), rtol=1e-12)
    relative = np.mean(variances, axis=0) / np.mean(means, axis=0) ** 2
    np.testing.assert_allclose(found["relative_variance"], relative, rtol=1e-12)


def test_pruning_curve_equals_a_plain_loop_and_keeps_what_carries_a_class() -> None:
    draw = np.random.default_rng(1)
    y = np.arange(60) % 3
    signal = np.zeros((3, 10))
    signal[[0, 1, 2], [0, 4, 9]] = 5
    h = (signal[y] + draw.normal(0, 0.5, (60, 10))).astype(np.float32)
    W, b = signal / 5 + draw.normal(0, 0.2, (3, 10)), draw.normal(0, 0.1, 3)
    features, labels = torch.from_numpy(h), torch.from_numpy(y)
    means, _ = class_means(features, labels, 3)
    curve = pruning_curve(features, labels, torch.from_numpy(W), torch.from_numpy(b), means)
    assert [point["kept"] for point in curve] == pytest.approx([1 - 0.05 * step for step in range(21)])  # down to none
    for point in curve:
        assert point["kept"] is not None
        count = round(point["kept"] * 10)
        for key, smallest in (("accuracy", False), ("smallest_kept", True)):
            pruned = np.zeros_like(W)
            for c in range(3):
                order = sorted(range(10), key=lambda d, c=c: -abs(float(means[c, d])))  # type: ignore[misc]
                for d in order[10 - count :] if smallest else order[:count]:
                    pruned[c, d] = W[c, d]
            right = [int(np.argmax(pruned @ h[i] + b)) == y[i] for i in range(60)]
            assert point[key] == pytest.approx(np.mean(right))
    at_a_tenth = next(point for point in curve if point["kept"] == 0.1)
    assert at_a_tenth["accuracy"] == 1
    assert at_a_tenth["smallest_kept"] is not None
    assert at_a_tenth["smallest_kept"] < 0.7


def test_bytes_by_part_add_up_to_what_was_sent() -> None:
    sizes = {"backbone.0.weight": 30, "head.weight": 7, "extras.auxiliary.psi": 17}
    layout = make_layout([(n, torch.zeros(k)) for n, k in sizes.items()], [("backbone.0.mean", torch.zeros(3))])
    traffic = {
        "down": {"model": 4 * layout.size * 6, "scaffold/c": 40, "fixed/head.bias": 8},
        "up": {"update": 4 * layout.size * 5, "scaffold/change": 40, "refused": 12},
    }
    found = bytes_by_part(traffic, layout)
    assert set(found) == {"backbone", "head", "auxiliary", "scaffold", "refused"}
    for way, tensors in traffic.items():
        assert sum(part[way] for part in found.values()) == sum(tensors.values())
    assert found["head"]["down"] == 6 * 64 + 8  # seven numbers lie on one line of 64 bytes
    assert found["scaffold"] == {"up": 40, "down": 40}
    assert part_of("fixed/extras.fedproto.means") == "fedproto"


@pytest.mark.slow
@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.integers(1, 40))
def test_balanced_draw_takes_rare_classes_whole(labels: list[int], most: int) -> None:
    rows = torch.arange(100, 100 + len(labels))
    chosen = balanced_rows(rows, torch.tensor(labels), most, 0, "test")
    assert len(chosen) == min(most, len(labels))
    assert len(set(chosen.tolist())) == len(chosen)
    taken = [labels[int(row) - 100] for row in chosen]
    left = {c: labels.count(c) - taken.count(c) for c in set(labels)}
    for c, rest in left.items():
        if rest:  # nobody else has more than one sample more than a class that was cut
            assert max(taken.count(other) for other in set(labels)) <= taken.count(c) + 1


def test_draws_are_fixed_and_clients_stay_the_same_whoever_else_is_there() -> None:
    rows = torch.arange(1000)
    assert torch.equal(sample_rows(rows, 10, 0, "a"), sample_rows(rows, 10, 0, "a"))
    assert not torch.equal(sample_rows(rows, 10, 0, "a"), sample_rows(rows, 10, 1, "a"))
    few = sample_clients(range(50), 5, 0)
    assert set(few) & set(range(25)) <= set(sample_clients(range(25), 5, 0))
    assert sample_clients([4, 2], 5, 0) == [4, 2]


def test_vectors_of_many_classes_are_compared_for_fewer_clients(tmp_path: Path) -> None:
    model = make_job(tmp_path).template
    assert affordable_clients(50, model) == 50
    model.classes, model.dim = 1000, 2048
    assert affordable_clients(50, model) == 4
    model.classes = 10**6
    assert affordable_clients(50, model) == 2


def test_flops_of_a_dense_and_a_convolutional_net_equal_the_formula(tmp_path: Path) -> None:
    job = make_job(tmp_path, None, "mlp:8")
    prediction, training = count_flops(job.method, job.fresh_model(), (5,))
    assert prediction == 2 * (5 * 8 + 8 * 3)  # a product and a sum for every weight
    assert training == prediction + 2 * (5 * 8 + 8 * 3) + 2 * 8 * 3  # gradients of weights, and of the hidden layer
    conv = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Flatten())
    conv.dim = 4 * 8 * 8  # type: ignore[assignment]
    job = make_job(tmp_path, images(side=8), conv, partition="iid", clients=2)
    assert count_flops(job.method, job.fresh_model(), (3, 8, 8))[0] == 2 * (8 * 8 * 4 * 27 + 256 * 2)


def test_counting_flops_leaves_the_model_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path, images(), "resnet20", partition="iid", clients=2)
    model = job.fresh_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    count_flops(job.method, model, job.federation.source.input_shape)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_principal_components_equal_numpy_up_to_sign() -> None:
    features = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    used, points = project_to_plane(features, "pca", 0)
    X = features.double().numpy()
    U, s, _ = np.linalg.svd(X - X.mean(0), full_matrices=False)
    assert used == "pca"
    np.testing.assert_allclose(np.abs(points), np.abs(U[:, :2] * s[:2]), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_tsne_keeps_far_groups_apart_and_few_or_equal_points_do_no_harm() -> None:
    y = np.arange(60) % 2
    features = torch.from_numpy(50.0 * y[:, None] + np.random.default_rng(0).normal(0, 1, (60, 4)))
    used, points = project_to_plane(features, "tsne", 0)
    assert used == "tsne"
    centres = np.stack([points[y == c].mean(0) for c in (0, 1)])
    nearest = np.argmin(((points[:, None] - centres) ** 2).sum(2), axis=1)
    assert (nearest == y).all()
    assert project_to_plane(features[:4], "tsne", 0)[0] == "pca"
    assert np.isfinite(project_to_plane(torch.ones(20, 3), "tsne", 0)[1]).all()
    assert project_to_plane(torch.arange(5.0)[:, None], "pca", 0)[1].shape == (5, 2)


def test_numbers_in_files_are_short_and_valid() -> None:
    content = significant({"a": [1 / 3, float("nan"), float("inf")], "b": (2, None, "x", 123456789.0), "c": 1e-30})
    assert content == {"a": [0.333333, None, None], "b": [2, None, "x", 123457000.0], "c": 1e-30}
    assert json.loads(compact(content)) == content
