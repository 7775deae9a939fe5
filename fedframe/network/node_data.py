"""A federation as one of its machines sees it: a node that holds some clients' data, or a server that holds none.

A client has the same number everywhere, so that its random streams are the same wherever it runs. Data that a machine
does not hold are an empty list of rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from fedframe.data.federation import Federation
from fedframe.data.ragged import Ragged
from fedframe.data.source import ArrayInputs, Samples, Source
from fedframe.data.spec import DataSchema
from fedframe.data.target import Target
from fedframe.settings import REMOTE_DATA
from fedframe.util.files import read_tensors, write_tensors

Pool = Literal["train", "test"]


def form_of(source: Source) -> DataSchema:
    """The form that data must have to fit this source."""
    classes = source.classes if source.target is None else ()
    return DataSchema(classes, source.train.x.shape, source.columns, source.mean, source.std, source.target)


# -- one client at its own node ----------------------------------------------------------------------------------------
def as_client_of(federation: Federation, number: int, names: Sequence[str]) -> Federation:
    """The federation of a single client as that client's part of a larger one."""

    def alone(rows: Ragged) -> Ragged:
        offsets = torch.zeros(len(names) + 1, dtype=torch.int64)
        offsets[number + 1 :] = len(rows.values)
        return Ragged(offsets, rows.values)

    train, local_test = alone(federation.train), alone(federation.local_test)
    return dataclasses.replace(federation, train=train, local_test=local_test, names=tuple(names))


# -- a server without data ---------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class RemoteInputs:
    """Inputs on other machines, of which only the shape is known."""

    shape: tuple[int, ...]

    def __len__(self) -> int:
        return 0

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """Refuse: there is nothing to take."""
        raise LookupError("these data are with the clients")

    def subset(self, rows: torch.Tensor) -> RemoteInputs:
        """These inputs again, as there are none to choose from."""
        return self


def federation_without_data(
    form: DataSchema, names: Sequence[str], train_sizes: Sequence[int], test_sizes: Sequence[int], test: Samples | None
) -> Federation:
    """Clients of which only the names and the numbers of samples are known; the test set, if any, is the server's."""
    values = None if form.target is None else torch.empty(0, len(form.outputs))
    nothing = Samples(RemoteInputs(form.shape), torch.empty(0, dtype=torch.int64), None, values)
    shared = (form.classes, form.mean, form.std, tuple(names), form.columns)
    source = Source(REMOTE_DATA, nothing, test, *shared, target=form.target)
    # Of rows that are elsewhere only the number is known: one zero, expanded so that it takes no memory.
    row = torch.zeros(1, dtype=torch.int64)
    lists = [Ragged(torch.tensor([0, *each]).cumsum(0), row.expand(sum(each))) for each in (train_sizes, test_sizes)]
    return Federation(source, lists[0], lists[1], "train", tuple(names), "nodes")


# -- some clients' data as a file --------------------------------------------------------------------------------------
def write_share(path: Path, federation: Federation, clients: Sequence[int]) -> None:
    """Write the data of these clients, and nothing else."""
    source = federation.source
    mine = torch.zeros(len(federation), dtype=torch.bool)
    mine[torch.tensor(list(clients), dtype=torch.int64)] = True
    tensors = {"mean": source.mean, "std": source.std}
    kept: dict[str, list[torch.Tensor]] = {"train": [], "test": []}
    rows = {}
    for name, ragged, pool in (
        ("train", federation.train, "train"),
        ("local_test", federation.local_test, federation.local_test_pool),
    ):
        rows[name] = ragged.values[mine[ragged.owners()]]
        kept[pool].append(rows[name])
        tensors[f"{name}/offsets"] = torch.cat([torch.zeros(1, dtype=torch.int64), (ragged.sizes() * mine).cumsum(0)])
    for pool, samples in (("train", source.train), ("test", source.test)):
        used = torch.cat([torch.empty(0, dtype=torch.int64), *kept[pool]]).unique()  # type: ignore[no-untyped-call]
        for name, of in (("train", "train"), ("local_test", federation.local_test_pool)):
            if of == pool:  # rising rows stay rising: a shuffled batch is made of the same samples
                tensors[f"{name}/values"] = torch.searchsorted(used, rows[name])
        if samples is not None:
            tensors |= {f"{pool}/x": samples.x.take(used), f"{pool}/y": samples.y[used]}
            if samples.values is not None:
                tensors[f"{pool}/learned"] = samples.values[used]
    target = source.target
    if target is not None and target.mean is not None and target.std is not None:
        tensors |= {"target/mean": target.mean, "target/std": target.std}
    notes = {
        "task": source.task,
        "outputs": list(source.outputs),
        "name": source.name,
        "classes": list(source.classes),
        "columns": list(source.columns) if source.columns is not None else None,
        "pool": federation.local_test_pool,
        "names": list(federation.names),
        "partition": federation.partition,
    }
    write_tensors(path, tensors, notes)


def read_share(path: Path) -> Federation:
    """Read what `write_share` wrote."""
    tensors, notes = read_tensors(path)
    train, test = (
        Samples(ArrayInputs(tensors[f"{pool}/x"]), tensors[f"{pool}/y"], None, tensors.get(f"{pool}/learned"))
        if f"{pool}/x" in tensors
        else None
        for pool in ("train", "test")
    )
    assert train is not None, path
    columns = tuple(notes["columns"]) if notes["columns"] is not None else None
    classes = tuple(notes["classes"])
    scale = tensors.get("target/mean"), tensors.get("target/std")
    task = notes.get("task", "classification")
    target = None if task == "classification" else Target(task, tuple(notes["outputs"]), *scale)
    source = Source(notes["name"], train, test, classes, tensors["mean"], tensors["std"], None, columns, target=target)
    lists = [Ragged(tensors[f"{name}/offsets"], tensors[f"{name}/values"]) for name in ("train", "local_test")]
    return Federation(source, lists[0], lists[1], notes["pool"], tuple(notes["names"]), notes["partition"])
