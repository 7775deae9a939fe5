"""Image nets of transformers: their configuration becomes part of the name, their weights a file like any other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedframe
from fedframe.errors import SettingError
from fedframe.jobs.gather import gather
from fedframe.models import build_net
from fedframe.models.transformers_nets import plain, read_name, resolve
from fedframe.models.weights import load_weights
from fedframe.runs.predictor import Predictor
from fedframe.util.allowed_code import code_place
from tests.data.conftest import sentence
from tests.helpers import images

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 8,
    "patch_size": 4, "num_channels": 1,
}  # fmt: skip


@pytest.fixture(scope="session")
def package() -> Any:
    return pytest.importorskip("transformers", reason="needs the extra 'transformers'")


def saved(folder: Path, package: Any, **values: Any) -> Any:
    """A small ViT as `save_pretrained` writes it, with random weights."""
    config = package.AutoConfig.for_model("vit", **{**SMALL, **values}, num_labels=4)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = package.AutoModelForImageClassification.from_config(config).eval()
    net.save_pretrained(folder)
    return net


def write_config(folder: Path, **values: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_a_name_says_all_of_the_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package is needed for it, and no path is left."""
    values = {"hidden_size": 8, "hidden_act": "gelu", "eps": 1e-12, "sizes": [1, 2], "bias": False, "path": "a&b=c"}
    written = {"model_type": "vit", "id2label": {"0": "cat"}, "_name_or_path": "/home/me", "none": None, **values}
    write_config(tmp_path / "net", **written)
    name, weights = resolve(f"transformers:{tmp_path}/net")
    assert weights is None
    assert "hidden_act=gelu" in name
    assert str(tmp_path) not in name
    assert "cat" not in name
    assert read_name(name) == ("vit", values)
    assert resolve(name) == (name, None)
    assert code_place(name) is None
    (tmp_path / "net/model.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    settings = gather({"model": "transformers:net:pretrained"}, None)
    assert (settings.model, settings.weights) == (name, str(tmp_path / "net/model.safetensors"))
    both = {"model": "transformers:net:pretrained", "weights": "other.pt"}
    assert "leave one out" in sentence(lambda: gather(both, None), SettingError)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("transformers:", "there is no folder ''"),
        ("transformers:/nowhere/at-all", "give one with a config.json"),
        ("transformers:empty", "has no config.json"),
        ("transformers:damaged", "cannot be read as JSON"),
        ("transformers:list", "holds no settings"),
        ("transformers:other", "has no model_type"),
        ("transformers:clip", "text_config is a configuration of its own"),
        ("transformers:vit:pretrained", "vit has no model.safetensors (one file"),
    ],
)
def test_what_is_no_folder_of_a_net(name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_config(tmp_path / "other", hidden_size=3)
    write_config(tmp_path / "vit", model_type="vit")
    write_config(tmp_path / "clip", model_type="clip", text_config={"hidden_size": 3})
    for folder, text in (("damaged", "{"), ("list", "[]")):
        write_config(tmp_path / folder)
        (tmp_path / folder / "config.json").write_text(text)
    assert part in sentence(lambda: resolve(name), SettingError)


def test_names_that_cannot_be_read() -> None:
    for name, part in (("hidden_size", "cannot be read at 'hidden_size'"), ("A=1", "'A=1'"), ("a={", "'a={'")):
        assert part in sentence(lambda text=name: read_name(f"transformers:vit?{text}"), SettingError)  # type: ignore[misc]
    with pytest.raises(SettingError, match="of its own"):
        plain({"vision": {"a": 1}})


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = sentence(lambda: build_net("transformers:vit?hidden_size=8", (1, 8, 8)), SettingError)
    assert "pip install 'fedframe[transformers]'" in said


def test_features_are_those_of_the_saved_net(package: Any, tmp_path: Path) -> None:
    """Weights are read by the names that files have, which are not those of the net in memory."""
    whole = saved(tmp_path / "vit", package)
    name, weights = resolve(f"transformers:{tmp_path}/vit:pretrained")
    assert weights is not None
    net = build_net(name, (1, 8, 8)).eval()
    assert net.dim == 16
    assert "classifier" in load_weights(net, weights)[0]
    x = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        logits = whole.classifier(net(x))
        assert torch.allclose(logits, whole(pixel_values=x).logits, atol=1e-6)
    colours = build_net(name, (3, 8, 8))
    said = sentence(lambda: load_weights(colours, weights), SettingError)
    assert "projection.weight has shape (16, 1, 4, 4), and the net's (16, 3, 4, 4)" in said


def test_grey_images_become_the_channels_that_the_net_has(package: Any) -> None:
    values = "&".join(f"{key}={value}" for key, value in {**SMALL, "num_channels": 3}.items())
    net = build_net(f"transformers:vit?{values}", (1, 12, 12)).eval()  # and its size is that of the data
    x = torch.randn(2, 1, 12, 12)
    assert torch.equal(net(x), net(x.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("name", "shape", "part"),
    [
        ("transformers:vitt?a=1", (1, 8, 8), "transformers has no 'vitt'; did you mean 'vit'?"),
        ("transformers:bert?hidden_size=8", (1, 8, 8), "could not be built as one for images"),
        ("transformers:vit?hidden_size=8", (5,), "takes images"),
    ],
)
def test_what_cannot_be_built(name: str, shape: tuple[int, ...], part: str, package: Any) -> None:
    assert part in sentence(lambda: build_net(name, shape), SettingError)


def test_a_run_needs_neither_the_folder_nor_the_file_to_predict(package: Any, tmp_path: Path) -> None:
    saved(tmp_path / "vit", package)
    data = images()
    result = fedframe.run(
        "fedavg", data=data, model=f"transformers:{tmp_path}/vit", rounds=1, clients=2, partition="iid", workers=1,
        out=tmp_path / "run", progress=False,
    )  # fmt: skip
    for file in (tmp_path / "vit").iterdir():
        file.unlink()
    assert str(tmp_path) not in result.settings.model
    assert len(Predictor.load(tmp_path / "run").predict(data["x_test"][:3])) == 3
