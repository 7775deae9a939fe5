"""What does a client gain by joining? Every client alone, with the shared model and with its own, side by side.

*Alone* is the recipe `local`: the same clients, split, net and seed, the same rounds, epochs and draws of clients, and
as many epochs after them as the run's client stage takes; nothing is shared. It is run once and kept in the run's
folder. The result is kept as `gain.json`, which the report shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedframe.analysis.finished_run import FinishedRun
from fedframe.api import resume, run
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.layout import named_tensors
from fedframe.core.model import Model, load_tensors
from fedframe.core.target_measures import Single
from fedframe.errors import DataError, SettingError
from fedframe.jobs.build import Net
from fedframe.runs.alone import alone_settings
from fedframe.runs.federated import is_nodes
from fedframe.runs.folder import CLIENT_SCORES, MODEL, RunFolder
from fedframe.runs.gain import (
    ALONE,
    GAIN,
    KEYS,
    ByModel,
    compare_client,
    score_at,
    with_everyone,
    with_pairs,
    write_gain,
)
from fedframe.runs.round_files import SUMMARY
from fedframe.settings import FROM_PYTHON, REMOTE_DATA, Settings
from fedframe.util.allowed_code import check_named
from fedframe.util.files import read_json

MOST_BYTES = 4 << 30  # of models that clients have trained alone: beyond that they are scored and not kept


def gain(folder: str | Path, *, data: object = None, model: Net | None = None, progress: bool = True) -> dict[str, Any]:
    """Compare, client by client, what training together gave with training alone; writes and returns `gain.json`.

    Data and a net that came from Python are given again. In a node's folder of a federation it is that node's gain.
    """
    path = RunFolder.open(folder).path
    if is_nodes(path):
        from fedframe.federation.own_gain import own_gain  # needs Flower, which only federations have

        return own_gain(path, progress)
    if not (path / SUMMARY).exists():
        raise DataError(f"{folder} is not finished; go on with 'fedframe resume {folder}' first.")
    settings = RunFolder(path).settings()
    table = RunFolder(path).read(CLIENT_SCORES)
    if settings.data == REMOTE_DATA and settings.secure:
        table = with_everyone(table, RunFolder(path).names())
    elif not any(value is not None for key in KEYS.values() for value in table[key]):
        raise DataError(f"No client of {folder} has test data of its own, so that there is nothing to compare.")
    if settings.data == REMOTE_DATA:
        return write_gain(path, settings.score_metric, known_rows(path, table))
    train_alone(path, settings, data, model, progress)
    alone = RunFolder(path / ALONE).read(CLIENT_SCORES)
    scores = {name: score_at(alone, "personal", place) for place, name in enumerate(alone["clients"])}
    rows = [
        compare_client(table, scores.get(name), place, settings.score_metric)
        for place, name in enumerate(table["clients"])
    ]
    net = model if model is not None and not isinstance(model, str) else None
    together = FinishedRun(path, net, data, changed_code=True)
    found = {**predictions(together), "alone": predictions(FinishedRun(path / ALONE, net, data, True))["personal"]}
    rows = [with_pairs(row, together.job, found, row["client"]) for row in rows]
    return write_gain(path, settings.score_metric, rows)


def known_rows(path: Path, table: dict[str, Any]) -> list[dict[str, Any]]:
    """A federation's rows: the file already has what nodes reported at the end of the run."""
    known = read_json(path / GAIN)["clients"] if (path / GAIN).exists() else []
    told = {row["client"]: row for row in known if row.get("gain")}
    return [told.get(name) or compare_client(table, None, place) for place, name in enumerate(table["clients"])]


def train_alone(path: Path, settings: Settings, data: object, model: Net | None, progress: bool) -> None:
    """Run every client alone, unless that was done; what was cut off goes on."""
    folder = path / ALONE
    if (folder / "config.yaml").exists():
        resume(folder, data=data, model=model, progress=progress)
        return
    check_named(settings.method, settings.model)  # what `run` is given counts as typed, and this was read
    for name, given in (("data", data), ("model", model)):
        if getattr(settings, name) == FROM_PYTHON and given is None:
            raise SettingError(f"The {name} of {path} came from Python; give it again there: gain(folder, {name}=...).")
    clients = len(read_json(path / CLIENT_SCORES)["clients"])
    values = alone_settings(settings, save=clients * (path / MODEL).stat().st_size <= MOST_BYTES)
    run(
        "local",
        data=settings.data if data is None else data,
        model=settings.model if model is None else model,
        out=folder,
        progress=progress,
        **values,
    )


@torch.no_grad()
def predictions(finished: FinishedRun) -> ByModel:
    """What the shared model and the own ones predict for each client's own test data; own ones where they were kept."""
    job = finished.job
    runtime = ClientRuntime(job)
    names = job.federation.names if job.federation.source.user_names is not None else range(len(job.federation))
    clients = [client for client in range(len(job.federation)) if len(job.federation.local_test[client])]
    shared: dict[Any, Single] = {}
    if finished.shares_a_model:
        shared = {names[client]: predict(runtime, finished.model, client) for client in clients}
    kept = [client for client in clients if client in set(finished.personal_clients)]
    own = {names[client]: predict(runtime, model, client) for client, model in finished.personal_models(kept)}
    return {"shared": shared, "personal": own}


def predict(runtime: ClientRuntime, model: Model, client: int) -> Single:
    """A model's predictions for a client's own test data."""
    load_tensors(runtime.model, named_tensors(model))
    return runtime.predict_local(client)
