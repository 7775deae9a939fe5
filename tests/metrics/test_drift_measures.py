"""Drift, classifiers and CKA against plain loops in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.core.job import Job
from fedframe.metrics.cka import COLUMNS, centred_gram, layer_grams, linear_cka, mean_cka, weighted_layers
from fedframe.metrics.classifier import class_vectors, gram
from fedframe.metrics.drift import classifier_cosines, classifier_norm_differences, mean_over_pairs, update_cosines
from tests.helpers import images, make_job


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 5))
def test_spherefed_equations_equal_a_plain_loop(seed: int, clients: int, classes: int) -> None:
    w = np.random.default_rng(seed).normal(0, 1, (clients, classes, 6))
    cosines, differences = [], []
    for a in range(clients):
        for b in range(clients):
            if a != b:
                for c in range(classes):
                    na, nb = np.linalg.norm(w[a, c]), np.linalg.norm(w[b, c])
                    cosines.append(w[a, c] @ w[b, c] / (na * nb))  # Eq. 2
                    differences.append(abs(na - nb))  # Eq. 3
    vectors = torch.from_numpy(w)
    assert mean_over_pairs(classifier_cosines(vectors)) == pytest.approx(np.mean(cosines), rel=1e-10, abs=1e-12)
    assert mean_over_pairs(classifier_norm_differences(vectors)) == pytest.approx(np.mean(differences), rel=1e-10)


def test_class_vector_of_zeros_is_left_out_of_the_cosine() -> None:
    w = torch.tensor([[[1.0, 0], [0, 0]], [[1.0, 1], [2, 2]]], dtype=torch.float64)
    assert mean_over_pairs(classifier_cosines(w)) == pytest.approx(2**-0.5)
    assert mean_over_pairs(classifier_cosines(torch.zeros(2, 2, 2))) is None
    assert mean_over_pairs(torch.ones(1, 1)) is None


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4), min_size=1, max_size=5))
def test_cosine_and_norm_of_updates_equal_a_plain_loop(rows: list[list[float]]) -> None:
    step = [1.0, -2.0, 0.5, 3.0]
    cosines, norms = update_cosines([torch.tensor(row) for row in rows], torch.tensor(step))
    for row, cosine, norm in zip(rows, cosines, norms, strict=True):
        length = sum(v * v for v in row) ** 0.5
        assert norm == pytest.approx(length, rel=1e-9, abs=1e-12)
        if length:
            dot = sum(a * b for a, b in zip(row, step, strict=True))
            assert cosine == pytest.approx(dot / length / 14.25**0.5, rel=1e-6, abs=1e-9)
        else:
            assert cosine is None


def plain_cka(X: np.ndarray, Y: np.ndarray) -> float:  # Kornblith et al., the first form
    X, Y = X - X.mean(0), Y - Y.mean(0)
    return float(np.sum((Y.T @ X) ** 2) / (np.linalg.norm(X.T @ X) * np.linalg.norm(Y.T @ Y)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(1, 9), st.integers(1, 9))
def test_linear_cka_equals_the_feature_form(seed: int, samples: int, p: int, q: int) -> None:
    draw = np.random.default_rng(seed)
    X, Y = draw.normal(0, 1, (samples, p)), draw.normal(3, 2, (samples, q))
    K, L = (centred_gram(torch.from_numpy(Z)) for Z in (X, Y))
    assert linear_cka(K, L) == pytest.approx(plain_cka(X, Y), rel=1e-8)


def test_cka_is_one_for_a_rotated_and_scaled_representation_and_undefined_for_a_constant() -> None:
    X = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    assert linear_cka(centred_gram(X), centred_gram(-7 * X @ rotation + 3)) == pytest.approx(1, rel=1e-10)
    assert linear_cka(centred_gram(X), centred_gram(torch.ones(20, 2))) is None
    assert mean_cka([{"layer": torch.zeros(3, 3)}, {"layer": torch.eye(3)}]) == {}
    assert mean_cka([]) == {}


def test_gram_of_a_wide_layer_in_pieces_is_that_of_the_whole() -> None:
    wide = torch.randn(5, COLUMNS + 10, generator=torch.Generator().manual_seed(0))
    centred = wide.double() - wide.double().mean(0)
    torch.testing.assert_close(centred_gram(wide.view(5, 2, -1)), centred @ centred.T)


def test_layers_of_a_net_are_watched_and_nothing_of_it_moves(tmp_path: Path) -> None:
    job = make_job(tmp_path, images(), "resnet20", partition="iid", clients=2)
    model = job.fresh_model().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = job.federation.source.batch(job.federation.source.train, torch.arange(6))
    grams = layer_grams(job.method, model, inputs)
    assert set(grams) == {name for name, _ in weighted_layers(model)} | {"logits"}
    assert len(grams) <= 25
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    same = mean_cka([grams, layer_grams(job.method, model, inputs)])
    assert all(value == pytest.approx(1) for value in same.values())


def shared_model(tmp_path: Path, method: str, **settings: object) -> Job:
    return make_job(tmp_path, None, "mlp:8", method=method, **settings)


@pytest.mark.parametrize("method", ["fedavg", "fedloge", "fedrod", "fedetf", "fedavg+etf", "fednh"])
def test_class_vectors_are_what_the_method_predicts_with(tmp_path: Path, method: str) -> None:
    job = shared_model(tmp_path, method)
    model = job.fresh_model().eval()
    if method == "fedrod":
        torch.nn.init.normal_(model.extras["fedrod"].weight)  # type: ignore[arg-type]
    found = class_vectors(job.method, model)
    assert found is not None
    inputs = job.federation.source.batch(job.federation.source.train, torch.arange(9))
    features = job.method.embed(model, inputs).double()
    logits = job.method.logits(model, inputs).double()
    torch.testing.assert_close(features @ found[0].T + found[1], logits, atol=1e-5, rtol=1e-4)


def test_prediction_by_distance_has_no_class_vectors(tmp_path: Path) -> None:
    job = shared_model(tmp_path, "fedproto", set={"fedproto": {"predict_by": "prototypes"}})
    model = job.fresh_model()
    with torch.no_grad():
        own = model.extras["fedproto"]
        own.means.normal_()  # type: ignore[operator]
        own.known.fill_(1)  # type: ignore[operator]
    assert class_vectors(job.method, model) is None


def test_gram_of_orthogonal_vectors() -> None:
    found = gram(torch.tensor([[2.0, 0, 0], [0, 3.0, 0], [0, 0, 0.5]]))
    assert found["cosines"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert found["ideal"] == -0.5
    assert found["norms"] == [2, 3, 0.5]
