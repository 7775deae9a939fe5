from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedframe.models import build_net
from fedframe.models import feature_maps as module
from fedframe.models.feature_maps import FeatureMap, RandomReLU, Raw, WhitenedPatches, make_map, pooling_matrix


def fitted(features: FeatureMap, inputs: Tensor) -> FeatureMap:
    for name, tensor in features.fit(features.sums(inputs)).items():
        getattr(features, name).data = tensor
    return features


def plain_patches(image: Tensor, k: int) -> list[list[Tensor]]:
    """Normalised patches of one image (height, width, channels), place by place."""
    rows = []
    for i in range(image.shape[0] - k + 1):
        row = []
        for j in range(image.shape[1] - k + 1):
            p = image[i : i + k, j : j + k].flatten().double()
            row.append((p - p.mean()) / (p.std(correction=0) + WhitenedPatches.EPS))
        rows.append(row)
    return rows


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_whitened_patches_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch, channels: int, bfloat16: bool) -> None:
    monkeypatch.setattr(module, "has_bfloat16_units", lambda: bfloat16)
    torch.manual_seed(0)
    images = torch.randn(5, 9, 8, channels)
    features = WhitenedPatches((channels, 9, 8), filters=4, patch=3, cells=2)
    found = fitted(features, images.flatten(1))(images.flatten(1))
    patches = [plain_patches(image, 3) for image in images]
    every = torch.stack([p for image in patches for row in image for p in row])
    mean = every.mean(0)
    covariance = (every - mean).T @ (every - mean) / len(every)
    values, vectors = torch.linalg.eigh(covariance)
    whitening = vectors @ torch.diag((values + WhitenedPatches.WHITENING).rsqrt()) @ vectors.T
    wanted = torch.zeros(5, 2, 2, 2, 4, dtype=torch.float64)  # image, sign, cell row, cell column, filter
    for n, image in enumerate(patches):
        for i, (top, bottom) in enumerate([(0, 4), (3, 7)]):  # of 7 x 6 places
            for j, (left, right) in enumerate([(0, 3), (3, 6)]):
                cell = [image[r][c] for r in range(top, bottom) for c in range(left, right)]
                y = torch.stack([features.directions.double() @ whitening @ (q - mean) for q in cell])
                for sign, value in enumerate((y, -y)):
                    wanted[n, sign, i, j] = (value - WhitenedPatches.THRESHOLD).clamp_min(0).mean(0).sqrt()
    tolerance = 3e-2 if bfloat16 else 1e-4
    torch.testing.assert_close(found.double(), wanted.reshape(5, -1), rtol=tolerance, atol=tolerance)
    assert found.shape == (5, features.dim)


def test_features_of_an_image_do_not_depend_on_its_neighbours_in_the_batch() -> None:
    torch.manual_seed(0)
    images = torch.randn(40, 64)
    features = fitted(WhitenedPatches((1, 8, 8), 6, 3, 2), images)
    alone = torch.cat([features(image[None]) for image in images])
    torch.testing.assert_close(features(images), alone, rtol=1e-2, atol=1e-2)
    assert features(images[:0]).shape == (0, features.dim)


@pytest.mark.parametrize("kind", ["patches", "relu"])
def test_sums_of_a_split_are_the_sums_of_all(kind: str) -> None:
    torch.manual_seed(0)
    features = WhitenedPatches((1, 8, 8), 6, 3, 2) if kind == "patches" else RandomReLU(64, 10)
    inputs = torch.randn(30, 64) + 1
    parts = features.sums(inputs[:7]) + features.sums(inputs[7:])
    assert parts.shape == (features.sums_size,)
    torch.testing.assert_close(parts, features.sums(inputs), rtol=1e-5, atol=1e-5)


def test_a_fixed_map_needs_no_sums_and_has_the_same_tensors() -> None:
    for shape in ((1, 8, 8), (30,)):
        made = []
        for knows in ("data", "fixed"):
            torch.manual_seed(0)
            made.append(make_map(shape, math.prod(shape), None, knows))
        data, fixed = made
        assert data.sums_size > 0
        assert fixed.sums_size == len(fixed.sums(torch.randn(3, math.prod(shape)))) == 0
        assert {n: t.shape for n, t in data.state_dict().items()} == {n: t.shape for n, t in fixed.state_dict().items()}
        assert torch.equal(data.state_dict()["directions"], fixed.state_dict()["directions"])
        inputs = torch.randn(3, math.prod(shape))
        assert bool(fitted(fixed, inputs)(inputs).abs().sum() > 0)


@pytest.mark.parametrize(("patch", "channels"), [(2, 1), (3, 3)])
def test_the_model_of_natural_patches_is_that_of_a_loop_over_pixels(patch: int, channels: int) -> None:
    pixels = [(i, j, c) for i in range(patch) for j in range(patch) for c in range(channels)]
    size = len(pixels)
    whole = torch.zeros(size, size, dtype=torch.float64)
    for a, (i, j, c) in enumerate(pixels):
        for b, (k, m, d) in enumerate(pixels):
            whole[a, b] = module.NEIGHBOURS ** (abs(i - k) + abs(j - m)) * (1 if c == d else module.CHANNELS)
    without_mean = torch.eye(size, dtype=torch.float64) - 1 / size
    centred = without_mean @ whole @ without_mean
    wanted = centred / centred.diagonal().mean() * module.CONTRAST
    torch.testing.assert_close(module.natural_covariance(patch, channels), wanted)


def test_a_fixed_map_whitens_with_the_model_in_the_place_of_the_data() -> None:
    torch.manual_seed(0)
    fixed = WhitenedPatches((3, 9, 8), filters=4, patch=3, cells=2, knows="fixed")
    torch.manual_seed(0)
    data = WhitenedPatches((3, 9, 8), filters=4, patch=3, cells=2)
    covariance = module.natural_covariance(3, 3)
    sums = torch.cat([10 * covariance.flatten(), torch.zeros(27).double(), torch.tensor([10.0]).double()])
    torch.testing.assert_close(fixed.fit(torch.zeros(0))["weight"], data.fit(sums)["weight"])


def test_a_fixed_layer_behind_a_net_sees_each_sample_normalised() -> None:
    torch.manual_seed(0)
    features = make_map(None, 6, 5, "fixed")
    assert isinstance(features, RandomReLU)
    inputs = 40 * torch.randn(4, 6) + 300
    found = features(inputs)
    assert torch.equal(found[:, :6], inputs)
    for row, unit in zip(inputs.double(), found[:, 6:], strict=True):
        x = (row - row.mean()) / row.std(correction=0)
        wanted = (features.directions.double() @ x + features.offsets).clamp_min(0)
        torch.testing.assert_close(unit.double(), wanted, rtol=1e-3, atol=1e-3)
    assert bool(features(torch.full((2, 6), 3.0)).isfinite().all())
    assert bool(features(torch.zeros(2, 6)).isfinite().all())


def test_a_black_image_has_finite_features() -> None:
    torch.manual_seed(0)
    features = fitted(WhitenedPatches((1, 8, 8), 6, 3, 2), torch.zeros(4, 64))
    assert bool(features(torch.zeros(2, 64)).isfinite().all())


@pytest.mark.slow
def test_a_random_layer_standardises_and_keeps_its_inputs() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(200, 3) * torch.tensor([1.0, 50.0, 0.0]) + torch.tensor([0.0, 7.0, 4.0])
    features = RandomReLU(3, 20)
    found = fitted(features, inputs)(inputs)
    mean, deviation = inputs.double().mean(0), inputs.double().std(0, correction=0)
    x = torch.stack(
        [(inputs[:, i].double() - mean[i]) / deviation[i] for i in range(2)] + [torch.zeros(200).double()], 1
    )
    torch.testing.assert_close(found[:, :3].double(), x, rtol=1e-4, atol=1e-5)
    wanted = torch.zeros(200, 20, dtype=torch.float64)
    for i in range(200):
        for u in range(20):
            wanted[i, u] = max(0.0, float(features.directions[u].double() @ x[i] + features.offsets[u]))
    torch.testing.assert_close(found[:, 3:].double(), wanted, rtol=1e-4, atol=1e-4)


def test_cells_cover_every_place_and_are_means() -> None:
    matrix = pooling_matrix(7, 5, 3)
    assert matrix.shape == (9, 35)
    torch.testing.assert_close(matrix.sum(1), torch.ones(9))
    assert bool((matrix.sum(0) > 0).all())


@pytest.mark.parametrize(
    ("shape", "width", "kind", "dim"),
    [
        ((1, 28, 28), None, WhitenedPatches, 2304),
        ((1, 28, 28), 12288, WhitenedPatches, 12288),
        ((3, 32, 32), None, WhitenedPatches, 4096),
        ((1, 8, 8), None, WhitenedPatches, 1152),
        ((1, 4, 4), None, RandomReLU, 16 + 1024),
        ((30,), None, RandomReLU, 30 + 1024),
        ((784,), None, RandomReLU, 784 + 4096),
        ((30,), 0, FeatureMap, 30),
        (None, None, FeatureMap, 64),
        (None, 100, RandomReLU, 164),
    ],
)
def test_the_map_suits_the_shape(
    shape: tuple[int, ...] | None, width: int | None, kind: type[FeatureMap], dim: int
) -> None:
    features = make_map(shape, math.prod(shape) if shape is not None else 64, width)
    assert type(features) is kind
    assert features.dim == dim
    assert not any(parameter.requires_grad for parameter in features.parameters())


def test_raw_gives_images_with_their_channels_last_and_vectors_as_they_are() -> None:
    net = build_net("raw", (3, 4, 5))
    assert isinstance(net, Raw)
    assert net.dim == 60
    images = torch.randn(2, 3, 4, 5)
    assert torch.equal(net(images), images.permute(0, 2, 3, 1).reshape(2, 60))
    vectors = torch.randn(2, 7)
    assert torch.equal(build_net("raw", (7,))(vectors), vectors)


def test_expected_answers_are_those_of_normal_numbers() -> None:
    mean, deviation = torch.tensor([-0.3, 0.0, 2.0]).double(), torch.tensor([1.0, 0.5, 0.1]).double()
    grid = torch.linspace(-8, 8, 20001, dtype=torch.float64)
    density = torch.exp(-grid.square() / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    for m, s, found in zip(mean, deviation, module.expected_relu(mean, deviation), strict=True):
        assert float(found) == pytest.approx(float(((m + s * grid).clamp_min(0) * density).sum()), abs=1e-5)


def test_the_usual_features_are_the_means_over_data_that_are_as_assumed() -> None:
    torch.manual_seed(0)
    layer = RandomReLU(6, 12, "fixed")
    assert float((layer(torch.randn(20000, 6)).mean(0) - layer.usual()).abs().max()) < 0.05
    patches = WhitenedPatches((1, 12, 12), 5, 4, 2, "fixed")
    filters = patches.fit(torch.zeros(0))["weight"][:-1].double()
    root = torch.linalg.cholesky(module.natural_covariance(4, 1) + 1e-9 * torch.eye(16))
    answers = torch.randn(40000, 16).double() @ root.T @ filters
    wanted = (answers - WhitenedPatches.THRESHOLD).clamp_min(0).mean(0).sqrt()
    found = patches.usual().reshape(2, 4, 5)
    assert found.shape.numel() == patches.dim
    for sign in range(2):
        for cell in range(4):
            torch.testing.assert_close(found[sign, cell].double(), wanted, rtol=0.05, atol=0.01)
