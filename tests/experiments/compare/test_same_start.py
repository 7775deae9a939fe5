"""What a comparison stands on: one seed, one partition, one split, one initial backbone, whatever the method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedframe.data import Federation, load_source, make_federation
from fedframe.data.holdout import hold_out_validation
from fedframe.experiments.compare.request import ComparisonRequest, make_plan
from fedframe.experiments.compare.tuning import tuning_cells
from fedframe.jobs.build import JobMaker, make_clients
from fedframe.settings import check
from tests.helpers import blobs

METHODS = ["fedavg", "fedprox", "scaffold", "fedetf", "fedrane", "fedloge", "spherefed", "fedper", "local", "fedadam"]


def makers(seed: int) -> list[JobMaker]:
    """What the comparison's cells of one seed start from."""
    plan = make_plan(ComparisonRequest(METHODS, seeds=[seed], settings={"clients": 5, "rounds": 2, "model": "mlp:32"}))
    return [JobMaker(plan.cell(row, row.candidates[0], seed).settings, None, None) for row in plan.rows]


def rows_of(federation: Federation) -> list[torch.Tensor]:
    """All that says who trains and is tested on what."""
    source = federation.source
    assert source.test is not None
    lists = (federation.train, federation.local_test)
    return [source.train.y, source.test.y, source.mean, source.std, *(t for r in lists for t in (r.offsets, r.values))]


@pytest.mark.slow
def test_methods_of_one_seed_have_the_same_partition_split_and_initial_backbone() -> None:
    first, *others = makers(3)
    before = {name: tensor.clone() for name, tensor in first.template.backbone.state_dict().items()}
    assert before
    for other in others:
        assert all(map(torch.equal, rows_of(first.federation), rows_of(other.federation)))
        after = other.template.backbone.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_another_seed_has_another_partition_and_another_start() -> None:
    first, other = makers(0)[0], makers(1)[0]
    assert not torch.equal(first.federation.train.values, other.federation.train.values)
    pairs = zip(first.template.backbone.parameters(), other.template.backbone.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def federation(seed: int, local_test: Any = 0.25, **more: Any) -> Federation:
    source = load_source(blobs(clients=5, each=30, seed=seed), seed=seed)
    return make_federation(source, partition="user", clients=None, seed=seed, local_test=local_test, **more)


def test_tuning_has_the_clients_of_the_final_run() -> None:
    final = make_clients(check({"data": "digits", "clients": 6, "new_clients": 2, "seed": 1}), "digits")
    asked = check({"data": "digits", "clients": 6, "new_clients": 2, "seed": 1, "validate_share": 0.2})
    found = make_clients(asked, "digits")
    assert len(found) == 4
    for client in range(4):
        assert set(found.train[client].tolist()) < set(final.train[client].tolist())


def test_test_labels_cannot_change_the_tuning_data() -> None:
    data = blobs()
    poisoned = {**data, "y_test": (data["y_test"] + 1) % 3}
    first, second = (
        hold_out_validation(
            make_federation(load_source(d, seed=0), partition="user", clients=None, seed=0, local_test=0.25), 0.2, 0
        )
        for d in (data, poisoned)
    )
    assert all(map(torch.equal, rows_of(first), rows_of(second)))


def test_tuning_cells_are_told_apart_by_what_decides_on_them() -> None:
    folders = set()
    for values in ({}, {"clients": 7}, {"clients": 7, "new_clients": 2}, {"clients": 8, "new_clients": 2}):
        plan = make_plan(ComparisonRequest(["fedavg"], seeds=1, sweep={"lr": [0.1, 0.2]}, out="o", settings=values))
        assert plan.tuning is not None
        folders |= {cell.folder for cell in tuning_cells(plan, plan.tuning).values()}
    assert len(folders) == 8


@pytest.mark.parametrize("change", ["y_train", "y_test", "x_train"])
def test_data_from_python_are_told_apart_by_their_content(change: str) -> None:
    data = blobs()
    other = {**data, change: np.roll(data[change], 1, axis=0) + (change == "x_train")}
    plans = [
        make_plan(ComparisonRequest(["fedavg"], data=d, settings={"partition": "user"}))
        for d in (data, dict(data), other)
    ]
    folders = [plan.cell(plan.rows[0], plan.rows[0].candidates[0], 0).folder for plan in plans]
    assert folders[0] == folders[1]
    assert folders[0] != folders[2]


def test_nets_from_python_are_told_apart_by_their_weights() -> None:
    def plan_folder(net: torch.nn.Module) -> Any:
        plan = make_plan(ComparisonRequest(["fedavg"], model=net, settings={"partition": "iid"}))
        return plan.cell(plan.rows[0], plan.rows[0].candidates[0], 0).folder

    net = torch.nn.Linear(4, 3)
    assert plan_folder(net) == plan_folder(net)
    assert plan_folder(net) != plan_folder(torch.nn.Linear(4, 3))
