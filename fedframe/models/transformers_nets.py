"""`transformers:NAME_OR_FOLDER`: image nets of the package transformers, without their classifier.

A name of the hub or a folder (what `save_pretrained` wrote) says two things: a configuration, and with `:pretrained`
weights. The configuration becomes part of the net's name, `transformers:vit?hidden_size=192&...` (`resolve`), and the
weights a file like any other (`weights`): so neither a run's folder nor a federation's agreement depends on a path or
on the hub. Nothing but plain values of the package's own configurations is read: no code comes with a name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

import torch
from torch import Tensor, nn

from fedframe.errors import DataError, SettingError, nearest
from fedframe.util.extras import extra
from fedframe.util.locate import reason
from fedframe.util.plain_files import read_bytes

PREFIX = "transformers:"
PRETRAINED = ":pretrained"
WEIGHTS = "model.safetensors"
KEY = re.compile(r"[a-z][a-z0-9_]*")
WORD, CONSTANTS = re.compile(r"[a-z][a-z0-9_]*"), ("true", "false", "null")
# What a configuration holds beside the architecture: where it came from, and its classes.
UNUSED = (
    "architectures", "auto_map", "dtype", "id2label", "label2id", "model_type", "name_or_path", "num_labels",
    "problem_type", "torch_dtype", "transformers_version",
)  # fmt: skip


def is_unresolved(name: str) -> bool:
    """Whether a net's name is that of a folder or of the hub."""
    return name.startswith(PREFIX) and "?" not in name


def resolve(name: str) -> tuple[str, Path | None]:
    """The net's name with its configuration in it, and the file of its weights if they are asked for."""
    if not is_unresolved(name):
        return name, None
    where = name.removeprefix(PREFIX).removesuffix(PRETRAINED)
    folder = Path(where).expanduser()
    if not where or (not folder.is_dir() and (folder.is_absolute() or where.count("/") > 1)):
        raise SettingError(f"model = {name!r}: there is no folder {where!r}; give one with a config.json.")
    fetch = _from_folder(folder) if folder.is_dir() else _from_hub(where, name)
    values = read_config(fetch("config.json"), name)
    kind = values.get("model_type")
    if not isinstance(kind, str) or not KEY.fullmatch(kind.replace("-", "_").lower()):
        raise SettingError(f"model = {name!r}: its config.json has no model_type; use a net that transformers saved.")
    text = f"{PREFIX}{kind}?" + "&".join(f"{key}={_written(value)}" for key, value in sorted(plain(values).items()))
    return text, fetch(WEIGHTS) if name.endswith(PRETRAINED) else None


def _from_folder(folder: Path) -> Any:
    def fetch(file: str) -> Path:
        path = folder.absolute() / file
        if not path.is_file():
            other = " (one file: save_pretrained(..., max_shard_size='50GB'))" if file == WEIGHTS else ""
            raise SettingError(f"{folder} has no {file}{other}; give a folder that save_pretrained wrote.")
        return path

    return fetch


def _from_hub(repository: str, name: str) -> Any:
    def fetch(file: str) -> Path:
        with extra("transformers", f"model = {name!r} needs transformers"):
            from huggingface_hub import hf_hub_download
        try:
            return Path(hf_hub_download(repository, file))
        except Exception as error:  # of many kinds, also for want of a network
            raise SettingError(
                f"model = {name!r}: {file} of {repository!r} is neither in the hub's cache nor to be had "
                f"({reason(error)}), and there is no folder of that name."
            ) from error

    return fetch


def read_config(path: Path, name: str) -> dict[str, Any]:
    """The values of a config.json."""
    try:
        found = json.loads(read_bytes(path))
    except (ValueError, RecursionError, DataError) as error:
        raise SettingError(f"model = {name!r}: {path} cannot be read as JSON; save the net again.") from error
    if not isinstance(found, dict):
        raise SettingError(f"model = {name!r}: {path} holds no settings by name; save the net again.")
    return found


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values of a configuration that say what the net is: numbers, texts, and lists of them."""
    kept = {key: value for key, value in values.items() if key not in UNUSED and not key.startswith("_")}
    for key, value in kept.items():
        items = value if isinstance(value, list) else [value]
        if not all(item is None or isinstance(item, bool | int | float | str) for item in items):
            raise SettingError(
                f"model = 'transformers:...': {key} is a configuration of its own, which is not supported; use a net "
                "with one configuration, such as a ViT, DeiT, Swin, ResNet or ConvNeXt."
            )
    return {key: value for key, value in kept.items() if value is not None and KEY.fullmatch(key)}


def _written(value: Any) -> str:
    if isinstance(value, str) and WORD.fullmatch(value) and value not in CONSTANTS:
        return value
    return quote(json.dumps(value, separators=(",", ":")), safe="[],.-")


def read_name(name: str) -> tuple[str, dict[str, Any]]:
    """The kind of net and the values of its configuration."""
    kind, _, query = name.removeprefix(PREFIX).partition("?")
    values: dict[str, Any] = {}
    for pair in filter(None, query.split("&")):
        key, equals, text = pair.partition("=")
        try:
            values[key] = text if WORD.fullmatch(text) and text not in CONSTANTS else json.loads(unquote(text))
        except ValueError:
            equals = ""
        if not equals or not KEY.fullmatch(key):
            raise SettingError(f"model = {name!r} cannot be read at {pair!r}; write for example hidden_size=192.")
    return kind, plain(values)


# -- the net -----------------------------------------------------------------------------------------------------------
class Pictures(nn.Module):
    """A classifier of images without its last layer; grey images become as many channels as it takes."""

    def __init__(self, net: nn.Module, setup: Any) -> None:
        super().__init__()
        self.net, self.setup = net, setup  # not `config`, by which peft would know a net of the package

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, dim)."""
        channels = self.setup.num_channels
        found: Tensor = self.net(pixel_values=x.expand(-1, channels, -1, -1) if x.shape[1] == 1 else x).logits
        return found.flatten(1)

    def own_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """A file's tensors by the names that the net has here: published files have those of earlier versions."""
        kind = type(self.net)
        with quiet(), torch.random.fork_rng(devices=[]):
            made, info = kind.from_pretrained(  # type: ignore[attr-defined]
                None, config=self.setup, state_dict=tensors, output_loading_info=True, ignore_mismatched_sizes=True
            )
        odd = {name: torch.empty(shape, device="meta") for name, shape, _ in info["mismatched_keys"]}
        there = {name: value for name, value in made.state_dict().items() if name not in info["missing_keys"]}
        found = {f"net.{name}": value for name, value in {**there, **odd}.items()}
        return found | {name: tensors[name] for name in info["unexpected_keys"] if name in tensors}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and tables of the package: what matters is said here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def build_transformers(name: str, shape: tuple[int, ...]) -> nn.Module:
    """Build the net for images of this shape; it gives features (batch, dim)."""
    if len(shape) != 3:
        raise SettingError(f"The net {name!r} takes images, not vectors of {shape[0]} numbers: use model='mlp'.")
    if name.endswith(PRETRAINED):
        raise SettingError(f"model = {name!r}: published weights are read when a run is set up; use weights=FILE here.")
    package = require(name)
    kind, values = read_name(resolve(name)[0])
    known = set(package.CONFIG_MAPPING.keys())
    if kind not in known:
        raise SettingError(f"model = {name!r}: transformers has no {kind!r}; {nearest(kind, known)}")
    try:
        config = package.AutoConfig.for_model(kind, **values)
        fit_config(config, shape)
        with quiet():
            net: nn.Module = package.AutoModelForImageClassification.from_config(config)
    except Exception as error:  # the package raises whatever it likes
        raise SettingError(f"The net {name[:80]!r} could not be built as one for images ({reason(error)}).") from error
    layers = [path for path, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise SettingError(f"The net {name[:80]!r} has no linear classifier to take off; use another.")
    parent, _, child = layers[-1].rpartition(".")
    setattr(net.get_submodule(parent), child, nn.Identity())
    return Pictures(net, config)


def fit_config(config: Any, shape: tuple[int, ...]) -> None:
    """The data's size and channels; grey images are repeated in the channels that the net has."""
    if shape[0] != 1:
        config.num_channels = shape[0]
    if getattr(config, "image_size", None) is not None:
        config.image_size = shape[1] if shape[1] == shape[2] else [shape[1], shape[2]]


def require(name: str) -> ModuleType:
    """The package, or how to install it."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # processes are forked, which its threads warn of
    with extra("transformers", f"model = {name[:80]!r} needs transformers"):
        import transformers
    found: ModuleType = transformers
    return found
