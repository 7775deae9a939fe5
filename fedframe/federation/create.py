"""`fedframe federation new`: from what the organiser specifies to an agreement and a folder with keys and kits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedframe.core.model import count_parameters
from fedframe.data import load_source
from fedframe.data.spec import DataSchema
from fedframe.data.target import Target
from fedframe.errors import SettingError
from fedframe.federation.agreement import DRAFT, Agreement, check_members
from fedframe.federation.folder import FederationFolder
from fedframe.federation.hosts import read_host
from fedframe.federation.kit_weights import read_for_kits
from fedframe.jobs.build import JobMaker
from fedframe.methods.recipes import make_method
from fedframe.models import NETS, build_net, default_net
from fedframe.network.compatibility import (
    check_data_stay_local,
    check_measures,
    check_min_clients,
    check_secure_aggregation,
)
from fedframe.network.node_data import federation_without_data, form_of
from fedframe.settings import REMOTE_DATA, Settings

BYTE = 255.0  # images are stored as 0 to 255; mean and std are given as shares of that
MAX_SAMPLE_VALUES = 1 << 26  # of one sample: 4096 x 4096 pixels in four channels
MAX_PARAMETERS = 500_000_000  # of a net: 2 GB, which node and organiser hold several times


def new_federation(
    path: Path,
    members: Sequence[str],
    hosts: Sequence[str],
    port: int,
    form: DataSchema,
    settings: Settings,
    with_weights: bool = False,
) -> FederationFolder:
    """Make a federation's folder; whatever cannot work is refused before anything is written."""
    names = tuple(sorted(members))
    check_members(names)
    if not hosts:
        raise SettingError("host: say where nodes find this machine: --host fl.example.org (or its address).")
    hosts = [read_host(host, port) for host in hosts]
    agreed = check_federation(settings, form, names)
    name = path.absolute().name or "federation"
    weights = read_for_kits(agreed) if with_weights else None
    return FederationFolder.create(path, Agreement(name, hosts[0], port, names, form, agreed), hosts, weights)


def check_federation(settings: Settings, form: DataSchema, names: tuple[str, ...]) -> Settings:
    """The settings of a federation with these members; whatever cannot work is refused."""
    check_members(names)
    remote = {"data": REMOTE_DATA, "partition": "nodes", "clients": len(names), "validate_share": 0.0}
    settings = settings.model_copy(update={**remote, "engine": "flower"})
    method = make_method(settings.method, settings.set)
    check_data_stay_local(method)
    check_secure_aggregation(settings, method, len(names))
    check_measures(settings, data_is_local=False)
    check_min_clients(settings, len(names))
    if form is DRAFT:  # what depends on the data is found out when a survey has settled their form
        return settings
    check_size(settings.model, form)
    # The net, the method and the data's form must fit: found out here, not at the nodes.
    blank = federation_without_data(form, names, [1] * len(names), [0] * len(names), None)
    return JobMaker(settings, blank, None).settings


def check_size(model: str, form: DataSchema) -> None:
    """Refuse a net that is too large for samples of this form, without building it: weights may not fit in memory."""
    shape = tuple(form.shape) if len(form.shape) == 1 else (form.shape[2], *form.shape[:2])
    name = default_net(shape) if model == "auto" else model
    if name.partition(":")[0] not in NETS:
        return  # a user's own code, which may read its weights while it makes them
    try:
        with torch.device("meta"):
            size: float = count_parameters(build_net(name, shape))
    except (RuntimeError, OverflowError):  # more than torch can count
        size = math.inf
    if size > MAX_PARAMETERS:
        raise SettingError(
            f"shape = {'x'.join(map(str, form.shape))}: the net {name} would have {size:,} numbers, more than "
            f"{MAX_PARAMETERS:,}; use smaller samples, such as --shape {'64x64x3' if len(shape) == 3 else 1000}, or a "
            "smaller net, such as --model mlp:64."
        )


def form_from_data(data: str, settings: Settings) -> DataSchema:
    """The form of data that the organiser has, such as a public sample."""
    folder = Path(settings.data_dir) if settings.data_dir else None
    return form_of(load_source(data, data_dir=folder, seed=settings.seed, label=settings.label, task=settings.task))


def form_from_description(
    classes: str, shape: str, mean: str, std: str, task: str = "auto", target_mean: str = "", target_std: str = ""
) -> DataSchema:
    """The form of data that the organiser describes in options; `classes` are the names of what is learned."""
    names = tuple(name.strip() for name in classes.split(",") if name.strip())
    if task in ("regression", "multilabel"):
        target = described_target(task, names, target_mean, target_std)
        return replace(form_from_description("0,1", shape, mean, std), classes=(), target=target)
    if len(names) < 2 or len(set(names)) < len(names):
        raise SettingError(
            "classes: name at least two different ones, in the order of their numbers: benign,malignant."
        )
    try:
        sizes = tuple(int(size) for size in shape.lower().split("x"))
    except ValueError:
        sizes = ()
    if len(sizes) not in (1, 3) or min(sizes) < 1:
        raise SettingError(f"shape = {shape!r}: write HEIGHTxWIDTHxCHANNELS, such as 64x64x3, or a number.")
    if math.prod(sizes) > MAX_SAMPLE_VALUES:
        raise SettingError(
            f"shape = {shape[:80]!r}: a sample has {MAX_SAMPLE_VALUES:,} values at most; use smaller ones, such as "
            "64x64x3."
        )
    scale = BYTE if len(sizes) == 3 else 1.0
    centre, spread = (per_channel(text, sizes[-1], what, scale) for what, text in (("mean", mean), ("std", std)))
    if not bool((spread > 0).all()):
        raise SettingError(f"std = {std!r}: must be above 0, such as 0.25.")
    return DataSchema(names, sizes, None, centre, spread)


def described_target(task: str, names: tuple[str, ...], mean: str, std: str) -> Target:
    """The numbers or labels that are learned, as options describe them."""
    if not names or len(set(names)) < len(names):
        raise SettingError(
            "classes: name what is learned, each once, as the columns of tables are called: height,weight."
        )
    if task == "multilabel":
        return Target("multilabel", names)
    if not (mean and std):
        raise SettingError(
            "target_mean, target_std: about what the numbers to learn are and how far they spread, in their units: "
            "--target-mean 150 --target-std 80 (or use --like with a sample)."
        )
    centre, spread = (
        per_channel(text, len(names), what, 1.0) for what, text in (("target_mean", mean), ("target_std", std))
    )
    if not bool((spread > 0).all()):
        raise SettingError(f"target_std = {std!r}: must be above 0, such as 80.")
    return Target("regression", names, centre, spread)


def per_channel(text: str, count: int, what: str, scale: float) -> torch.Tensor:
    """One number for all channels, or one for each, times the scale."""
    try:
        values = [float(item) for item in text.split(",")]
    except ValueError:
        raise SettingError(f"{what} = {text!r}: write numbers, such as 0.5 or 0.49,0.48,0.45.") from None
    if len(values) not in (1, count):
        raise SettingError(f"{what} = {text!r}: give one number, or {count}.")
    found = torch.tensor(values if len(values) == count else values * count, dtype=torch.float32) * scale
    if not bool(found.isfinite().all()):
        raise SettingError(f"{what} = {text!r}: write finite numbers, such as 0.5 or 0.49,0.48,0.45.")
    return found
