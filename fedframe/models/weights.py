"""`weights`: a net's initial weights from a local file, `.safetensors`, or `.pt` / `.pth` opened without running code.

Names are those of the net's `state_dict()`, with or without a prefix that the names of the file or of the net share
("backbone.", "module.", "net."). Tensors of the file that the net lacks, such as another classifier, are left out and
named; a tensor of the net that the file lacks, or of another shape, is refused by name.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedframe.errors import DataError, SettingError
from fedframe.models.transformers_nets import Pictures
from fedframe.util.files import read_tensors
from fedframe.util.plain_files import refuse_pipe

LISTED = 3  # names that a sentence lists
WRAPPERS = ("state_dict", "model", "model_state_dict")  # under which training scripts keep a net's tensors


def weights_digest(path: Path) -> str:
    """A digest of the file's content."""
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise SettingError(
            f"weights = {str(path)!r} cannot be read ({error.strerror}); give the path of an existing file."
        ) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; a file that would run code is refused."""
    if path.suffix == ".safetensors":
        return read_tensors(path)[0]
    if path.suffix not in (".pt", ".pth"):
        raise SettingError(f"weights = {str(path)!r}: use a file that ends in .safetensors, .pt or .pth.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} is damaged, or holds more than tensors, which is never opened; save net.state_dict()."
        ) from error
    for name in WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    tensors = {str(k): v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, Mapping) else {}
    if not tensors:
        raise DataError(f"{path} holds no tensors by name; save net.state_dict().")
    return tensors


@torch.no_grad()
def load_weights(net: nn.Module, path: Path) -> list[str]:
    """Copy a file's tensors into the net; returns what was left out, for the user."""
    own, found = dict(net.state_dict()), read_weights(path)
    found = net.own_names(found) if isinstance(net, Pictures) else renamed(found, own)
    where = f"weights = {str(path)!r}"
    if missing := [name for name in own if name not in found and own[name].is_floating_point()]:
        raise SettingError(f"{where} lacks {_some(missing)} of the net; use the net that they were saved from (model).")
    for name, tensor in own.items():
        if name in found and found[name].shape != tensor.shape:
            raise SettingError(
                f"{where}: {name} has shape {tuple(found[name].shape)}, and the net's {tuple(tensor.shape)}; use the "
                "net, image size and channels that they were saved from."
            )
    for name, tensor in own.items():
        if name in found:
            if not bool(found[name].isfinite().all()):
                raise SettingError(f"{where}: {name} holds NaN or infinity; use weights that are finite.")
            tensor.copy_(found[name])
    unused = [name for name in found if name not in own]
    return [f"Of {path.name}, {_some(unused)} had no place in the net and were left out."] if unused else []


def renamed(found: dict[str, Tensor], own: Collection[str]) -> dict[str, Tensor]:
    """A file's tensors by the net's names, from which they may differ by a first word, in the file or in the net."""
    if not found.keys().isdisjoint(own):
        return found
    first, inside = (next(iter(names), "").partition(".")[0] + "." for names in (found, own))
    if all(name.startswith(first) for name in found):
        found = {name.removeprefix(first): value for name, value in found.items()}
    if found.keys().isdisjoint(own) and all(name.startswith(inside) for name in own):
        found = {inside + name: value for name, value in found.items()}
    return found


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
