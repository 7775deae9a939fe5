"""Every named net: forward, backward, layout, determinism and the well-known parameter counts."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.errors import SettingError
from fedframe.models import NETS, build_net, default_net

DIMS = {
    "mlp": 200,
    "convnet": 64,
    "cnn": 512,
    "cnn7": 256,
    "vgg11": 512,
    "vgg13": 512,
    "vgg13bn": 512,
    "resnet20": 64,
    "resnet18": 512,
    "resnet34": 512,
    "resnet50": 2048,
    "senet18": 512,
    "mobilenetv2": 1280,
}
LEARNING = [name for name in NETS if name != "raw"]


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def seeded(name: str, shape: tuple[int, ...], seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return build_net(name, shape)


def draw_batch(shape: tuple[int, ...], batch: int) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(7))


def forward(net: nn.Module, shape: tuple[int, ...], batch: int = 4) -> Tensor:
    """The features of the batch that `check_step` uses."""
    with torch.no_grad():
        features: Tensor = net(draw_batch(shape, batch))
    return features


def check_step(net: nn.Module, shape: tuple[int, ...], batch: int = 4) -> Tensor:
    """One forward and backward pass that must leave finite gradients everywhere and the input as it was."""
    x = draw_batch(shape, batch)
    before = x.clone()
    features: Tensor = net(x)
    assert features.shape == (batch, net.dim)
    torch.autograd.backward(features.square().sum())
    assert torch.equal(x, before)
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
    return features.detach()


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_net_trains_on_small_images(name: str) -> None:
    shape = (1, 28, 28) if name in ("convnet", "cnn") else (3, 32, 32)
    net = seeded(name, shape)
    assert net.dim == DIMS[name]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in net.parameters() if p.dim() == 4)
    features = check_step(net, shape)
    assert features.std() > 1e-3  # the signal survives the first weights
    assert torch.equal(features, forward(seeded(name, shape), shape))
    assert not torch.equal(features, forward(seeded(name, shape, seed=2), shape))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "resnet18", "resnet34", "resnet50", "senet18", "mobilenetv2"])
def test_net_trains_on_large_images(name: str) -> None:
    check_step(seeded(name, (3, 96, 96)), (3, 96, 96), batch=2)


@pytest.mark.parametrize("name", sorted({*LEARNING} - {"resnet34", "resnet50", "vgg13", "vgg13bn"}))
def test_net_takes_other_channels_and_oblong_images(name: str) -> None:
    net = build_net(name, (2, 28, 36)).eval()
    assert net(torch.zeros(2, 2, 28, 36)).shape == (2, DIMS[name])


@pytest.mark.slow
def test_large_nets_have_the_parameters_of_their_papers() -> None:
    known = {
        "resnet18": 11_176_512,
        "resnet34": 21_284_672,
        "resnet50": 23_508_032,
        "mobilenetv2": 2_223_872,
        "vgg11": 9_220_480,
        "vgg13": 9_404_992,
        "vgg13bn": 9_407_936,  # 2,944 channels: a scale more, and a shift in the place of a bias
    }
    with torch.device("meta"):  # counts need no weights
        assert {name: count(build_net(name, (3, 224, 224))) for name in known} == known


def test_widths_of_an_mlp_may_be_many() -> None:
    net = build_net("mlp:1024x1024x128", (3, 32, 32))
    assert count(net) == 3072 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 128 + 128
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 128)


@pytest.mark.slow
def test_vgg_with_batch_norm_is_the_plain_one_where_its_statistics_are_neutral() -> None:
    plain, normed = seeded("vgg13", (3, 32, 32)), seeded("vgg13bn", (3, 32, 32))
    convolutions = {name: tensor for name, tensor in plain.state_dict().items() if name.endswith("weight")}
    normed.load_state_dict(convolutions, strict=False)  # the plain one's biases begin at zero
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(normed.eval()(x), plain.eval()(x), rtol=1e-3, atol=1e-5)
    assert not torch.equal(normed.train()(x), plain(x))


def test_small_nets_have_the_parameters_of_their_papers() -> None:
    def with_head(name: str, shape: tuple[int, ...]) -> int:
        net = build_net(name, shape)
        return count(net) + count(nn.Linear(DIMS[name], 10))

    assert with_head("cnn", (1, 28, 28)) == 582_026
    assert with_head("mlp", (1, 28, 28)) == 199_210
    assert with_head("resnet20", (3, 32, 32)) == 269_722
    assert count(build_net("convnet", (1, 28, 28))) == count(build_net("convnet", (1, 32, 32))) == 58_436


def test_vgg_feature_at_32_pixels_is_the_last_pooled_map() -> None:
    net = build_net("vgg11", (3, 32, 32))
    x = y = torch.randn(2, 3, 32, 32)
    for i, conv in enumerate(net.get_submodule("convs").children()):
        y = F.relu(conv(y))
        y = F.max_pool2d(y, 2) if i in (0, 1, 3, 5, 7) else y
    assert y.shape == (2, 512, 1, 1)
    torch.testing.assert_close(net(x), y.flatten(1))


def test_cnn_equals_the_textbook_order_of_relu_and_pooling() -> None:
    net = build_net("cnn", (1, 28, 28))
    conv1, conv2, fc = net.children()
    x = torch.randn(3, 1, 28, 28)
    y = F.max_pool2d(F.relu(conv1(x)), 2)
    y = F.max_pool2d(F.relu(conv2(y)), 2)
    torch.testing.assert_close(net(x), F.relu(fc(y.flatten(1))))


def test_grey_images_run_channels_last_too_and_a_copy_keeps_it() -> None:
    net = build_net("cnn", (1, 28, 28))
    again = copy.deepcopy(net)
    again.load_state_dict({key: value.contiguous() for key, value in net.state_dict().items()})
    for each in (net, again):
        weight = each.get_parameter("conv1.weight")
        maps = each.get_submodule("conv1")(torch.zeros(2, 1, 28, 28))
        assert weight.stride() == (25, 1, 5, 1)
        assert not maps.is_contiguous()
        assert maps.is_contiguous(memory_format=torch.channels_last)


def test_free_shortcut_of_resnet20_keeps_every_second_pixel_between_zeros() -> None:
    block = build_net("resnet20", (3, 32, 32)).get_submodule("blocks.3")
    nn.init.zeros_(block.get_parameter("body.2.1.weight"))  # the body gives 0, the shortcut is all there is
    x = torch.rand(2, 16, 8, 8)
    y = block(x)
    assert y.shape == (2, 32, 4, 4)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert y[:, :8].abs().sum() == y[:, 24:].abs().sum() == 0


def test_mlp_takes_vectors_and_other_widths() -> None:
    net = build_net("mlp:31x17", (12,))
    assert net.dim == 17
    assert net(torch.zeros(2, 12)).shape == (2, 17)
    assert [p.shape for p in net.parameters() if p.dim() == 2] == [(31, 12), (17, 31)]


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (3, 27, 40), (1, 28, 28), (3, 32, 32), (3, 40, 40), (3, 64, 64)])
def test_default_net_works(shape: tuple[int, ...]) -> None:
    build_net(default_net(shape), shape)


def test_default_net_by_size() -> None:
    shapes = [(5,), (1, 8, 8), (1, 28, 28), (3, 40, 40), (3, 41, 41), (3, 224, 224)]
    assert [default_net(shape) for shape in shapes] == [
        "mlp",
        "mlp",
        "convnet",
        "convnet",
        "convnet",
        "resnet20",
    ]


@pytest.mark.parametrize("name", sorted({*LEARNING} - {"mlp"}))
def test_net_works_at_its_smallest_size_and_says_so_below(name: str) -> None:
    with pytest.raises(SettingError, match=r"at least (\d+)x\1 pixels, not 7x30: use model='mlp'") as caught:
        build_net(name, (3, 7, 30))
    smallest = int(str(caught.value).split("at least ")[1].split("x")[0])
    net = build_net(name, (3, smallest, smallest)).eval()
    assert net(torch.zeros(2, 3, smallest, smallest)).shape == (2, DIMS[name])
    with pytest.raises(SettingError, match="pixels"):
        build_net(name, (3, smallest, smallest - 1))


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("cnn", (12,), "The net 'cnn' takes images, not vectors of 12 numbers: use model='mlp'."),
        ("resnet19", (3, 32, 32), "There is no net 'resnet19': did you mean 'resnet18'?"),
        ("ResNet50", (3, 32, 32), "did you mean 'resnet50'?"),
        ("", (3, 32, 32), "There is no net '': choose one of: cnn,"),
        ("mlp:25x", (12,), "The net 'mlp:25x' has widths that cannot be read: write for example"),
        ("mlp:0x8", (12,), "has widths that cannot be read"),
        ("resnet18:64", (3, 32, 32), "The net 'resnet18' has no options, so write model='resnet18'"),
        ("mlp", (28, 28), "(channels, height, width) or (features,), all at least 1, not (28, 28)."),
        ("mlp", (0,), "all at least 1, not (0,)."),
    ],
)
def test_bad_request_ends_in_one_clear_sentence(name: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        build_net(name, shape)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
