"""What tells data and nets that exist only in Python from others: folders of runs are named after it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from fedframe.jobs.build import make_clients
from fedframe.settings import check


def known_by(objects: Mapping[str, Any], settings: Mapping[str, Any], seed: int) -> tuple[str, ...]:
    """A text per object: of data their labels, split and normalisation, of a net its weights.

    A function that makes a net is known by its name.
    """
    return tuple((data_text if name == "data" else net_text)(value, settings, seed) for name, value in objects.items())


def data_text(data: object, settings: Mapping[str, Any], seed: int) -> str:
    """A digest of the clients that the data become."""
    checked = check({**{name: value for name, value in settings.items() if name != "set"}, "seed": seed})
    clients = make_clients(checked, data)
    source = clients.source
    digest = hashlib.blake2b(digest_size=8)
    tests = () if source.test is None else (source.test.y,)
    rows = (clients.train.offsets, clients.train.values, clients.local_test.values)
    for values in (source.train.y, *tests, *rows, source.mean, source.std):
        digest.update(values.contiguous().numpy().tobytes())
    return f"data {digest.hexdigest()}"


def net_text(net: object, settings: Mapping[str, Any], seed: int) -> str:
    """A digest of the net's structure and weights."""
    if not isinstance(net, nn.Module):
        return f"net {getattr(net, '__qualname__', type(net).__qualname__)}"
    digest = hashlib.blake2b(repr(net).encode(), digest_size=8)
    for tensor in net.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return f"net {digest.hexdigest()}"
