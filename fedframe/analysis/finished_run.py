"""A finished run, loaded for analysis: its data, its shared model, and its clients' own models one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedframe.core.job import Job, personal_path
from fedframe.core.layout import named_tensors
from fedframe.core.model import Model, load_tensors
from fedframe.data.federation import Federation
from fedframe.errors import DamageError, DataError, SettingError
from fedframe.jobs.build import JobMaker
from fedframe.metrics.classifier import embeddings
from fedframe.models import frames
from fedframe.runs.changes import changed_since, refuse
from fedframe.runs.federated import NOTES, how_it_ends, is_organisers, not_here
from fedframe.runs.folder import MODEL, RunFolder
from fedframe.runs.organiser import nodes_federation
from fedframe.runs.predictor import Predictor
from fedframe.runs.roster import Roster
from fedframe.runs.round_files import SUMMARY
from fedframe.settings import FROM_PYTHON, REMOTE_DATA, Settings
from fedframe.util.allowed_code import allow_edited, check_named
from fedframe.util.files import read_json

Net = nn.Module | Callable[..., nn.Module]


class FinishedRun:
    """Data and models of a finished run. Everything is computed on the CPU."""

    def __init__(self, folder: Path, net: Net | None, data: object, changed_code: bool = False) -> None:
        self.folder = RunFolder.open(folder)
        self.path = self.folder.path
        asked = self.folder.settings()
        if not (self.path / MODEL).exists():
            ends = f"wait for the end of the run, or go on with 'fedframe resume {folder}'."
            raise DataError(
                f"{folder} has no {MODEL} yet: {how_it_ends(self.path) if asked.data == REMOTE_DATA else ends}"
            )
        settings = asked.model_copy(update={"device": "cpu"})
        again = f"give it again: fedframe.measure.examine({str(folder)!r}, "
        if settings.data == FROM_PYTHON and data is None:
            raise SettingError(f"The data of {folder} came from Python; {again}data=...).")
        if changed_code:
            allow_edited(settings.method, settings.model)
        else:
            refuse(changed_since(self.folder, net, data=data is None), self.path)
        check_named(settings.method, settings.model)
        shared, self.shares_a_model = Predictor.load_shared(self.path, net, f"{again}net=MyNet())", code_check="none")
        if settings.data == REMOTE_DATA and data is None:
            data = self.without_data(shared, settings)
        with frames.loading_weights():  # class vectors are those that were saved: none are searched for
            maker = JobMaker(settings, data, net)
        maker.federation = Roster.read(self.path).adjust(maker.federation, settings.seed)
        job = maker.make(self.path)
        self.check_fingerprint(job)
        self.model: Model = shared.model
        self.job: Job = replace(job, template=self.model)
        self.source, self.method = job.federation.source, job.method
        self._shared = {name: tensor.detach().clone() for name, tensor in named_tensors(self.model).items()}

    def without_data(self, shared: Predictor, settings: Settings) -> Federation:
        """A federation's run as its organiser knows it: the clients' sizes, and test data if it has any of its own."""
        if not is_organisers(self.path):
            raise DataError(not_here(self.path))
        form = shared.schema
        return nodes_federation(form, read_json(self.path / NOTES), settings)

    @property
    def has_training_data(self) -> bool:
        """Whether the training data are here, and not at the nodes of a federation."""
        return len(self.source.train) > 0

    def check_fingerprint(self, job: Job) -> None:
        """Refuse data that are no longer those of the run: every figure would be wrong."""
        found = self.folder.checkpoint()
        if found is not None and found[2]["fingerprint"] != job.fingerprint():
            raise DataError(f"The data of {self.path} have changed since the run; put them back as they were.")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json; empty if there is none."""
        path = self.path / SUMMARY
        return self.folder.read(SUMMARY) if path.exists() else {}

    @cached_property
    def train_counts(self) -> list[int]:
        """Training samples of each class, over all clients; zeros where labels stay at the nodes."""
        if not self.has_training_data:
            return [0] * len(self.source.classes)
        labels = self.source.train.y[self.job.federation.train.values]
        counts: list[int] = labels.bincount(minlength=len(self.source.classes)).tolist()
        return counts

    def train_embeddings(self, rows: Tensor) -> Tensor:
        """Features of training rows under the model in its current state."""
        return embeddings(self.job, self.model, self.source.train, rows)

    def owners(self, rows: Tensor) -> Tensor:
        """The client that trains on each of these rows; -1 for none."""
        owner = torch.full((len(self.source.train),), -1)
        owner[self.job.federation.train.values] = self.job.federation.train.owners()
        return owner[rows]

    @cached_property
    def personal_clients(self) -> list[int]:
        """The clients whose own models were kept."""
        everyone = range(len(self.job.federation))
        found = [client for client in everyone if personal_path(self.path, client).exists()]
        kept = self.summary.get("personal_models", len(found))
        if len(found) < kept:
            text = f"{self.path / 'personal'} holds {len(found)} of the {kept} models that were kept there."
            raise self.folder.with_remedy(DamageError(text, self.path / "personal"))
        return found

    def personal_models(self, clients: Sequence[int]) -> Iterator[tuple[int, Model]]:
        """These clients' own models, one after the other in the same net; afterwards it is the shared one again."""
        try:
            for client in clients:
                own, _ = self.folder.read_model(personal_path(self.path, client))
                load_tensors(self.model, {**self._shared, **own})
                yield client, self.model.eval()
        finally:
            load_tensors(self.model, self._shared)
