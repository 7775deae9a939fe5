"""Jobs of chosen parts on small data, for the tests of parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedframe.core.job import Job
from fedframe.core.method import combine
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.methods.parts import DEFAULTS
from tests.helpers import blobs, make_job, nothing


def uneven(clients: int = 3, total: int = 72) -> dict[str, Any]:
    """Data whose clients differ in size and in their classes."""
    data = blobs(clients=clients, each=total // clients)
    data["user_train"] = (torch.arange(total) ** 2 * clients // total**2).numpy()
    return data


def lacking() -> dict[str, Any]:
    """Three clients, of which the first lacks class 2 and the second class 0."""
    data = blobs(clients=3, each=24)
    y, user = data["y_train"], data["user_train"]
    data["y_train"] = np.where(user == 0, y % 2, np.where(user == 1, 1 + y % 2, y))
    return data


def job_of(folder: Path, *parts: Part, data: object = None, **settings: Any) -> Job:
    """A job of these parts (and defaults for the rest)."""
    job = make_job(folder, uneven() if data is None else data, **{"lr": 0.1, "epochs": 1, **settings})
    method = combine("toy", list(parts), [default() for default in DEFAULTS])
    torch.manual_seed(0)
    model = method.build(job.template.backbone, job.template.dim, job.template.classes)
    return Job(job.settings, method, job.federation, model, folder)


def trained(job: Job, rounds: int = 2) -> Server:
    """The server after some rounds."""
    server = Server(job, InlineEngine(job), nothing)
    for round in range(1, rounds + 1):
        server.run_round(round, nothing)
        server.round = round
    return server
