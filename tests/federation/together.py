"""All nodes' data in one place, as nobody in a real federation has them: the same run in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fedframe.data.federation import Federation
from fedframe.data.ragged import Ragged
from fedframe.data.source import ArrayInputs, Samples
from fedframe.federation.join import Membership
from fedframe.federation.kit import Kit
from fedframe.jobs.build import JobMaker
from fedframe.runs.federated import load_test_set
from fedframe.runs.folder import RunFolder
from fedframe.runs.session import execute
from tests.federation.commands import MEMBERS
from tests.helpers import Recorder


def together(folder: Path, test_data: str | None) -> tuple[Federation, Membership]:
    """The federation of all members, and one of them."""
    found = [
        Membership(Kit.read(folder / f"clinic/kits/{name}-kit.zip"), f"npz:{folder / name}.npz", folder, None, None)
        for name in MEMBERS
    ]
    places = [member.federation for member in found]
    x = torch.cat([place.source.train.x.take(torch.arange(len(place.source.train))) for place in places])
    y = torch.cat([place.source.train.y for place in places])
    starts = torch.tensor([0, *(len(place.source.train) for place in places[:-1])]).cumsum(0)
    lists = []
    for name in ("train", "local_test"):
        rows = [getattr(place, name).values + start for place, start in zip(places, starts, strict=True)]
        offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
        lists.append(Ragged(offsets, torch.cat(rows)))
    agreement = found[0].kit.agreement
    test = load_test_set(agreement.form, test_data, agreement.settings.label)
    source = replace(places[0].source, train=Samples(ArrayInputs(x), y), test=test)
    return replace(places[0], source=source, train=lists[0], local_test=lists[1]), found[0]


def run_together(folder: Path, test_data: str | None = None) -> RunFolder:
    """The run of the federation in `folder`, in this process and without a network."""
    where = test_data.replace("npz:", f"npz:{folder}/") if test_data is not None else None
    federation, member = together(folder, where)
    maker = JobMaker(member.settings.model_copy(update={"engine": "local", "workers": 1}), federation, None)
    maker.choose_metric()
    here = RunFolder.create(folder / "here", maker.settings)
    execute(maker.make(here.path), here, Recorder())
    return here
