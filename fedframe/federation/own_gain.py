"""`fedframe gain` in a node's run folder: what this node gains by joining, computed and kept at the node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.imbalance import METRIC
from fedframe.core.job import Job
from fedframe.core.model import load_tensors
from fedframe.core.target_measures import Single
from fedframe.errors import DataError
from fedframe.federation.join import Membership
from fedframe.federation.kit import Kit
from fedframe.federation.own_results import keep_gain, train_alone
from fedframe.runs.federated import OWN, home
from fedframe.runs.folder import CLIENT_SCORES, RunFolder
from fedframe.runs.gain import compare_client, write_gain
from fedframe.runs.predictor import Predictor
from fedframe.runs.round_files import SUMMARY
from fedframe.util.files import read_json


def own_gain(run: Path, progress: bool = True) -> dict[str, Any]:
    """`fedframe gain` in a node's run folder: trains alone if that is still to be done, and compares."""
    if not (run / OWN).exists() or not (run / SUMMARY).exists():
        raise DataError(f"{run} is a node's part of a run that is not over yet; ask again when the training has ended.")
    notes = read_json(run / OWN)
    folder = home(run).absolute()
    member = Membership(Kit.read(folder), notes["data"], folder, notes["test_share"], notes["label"], notes["device"])
    train_alone(member, progress)
    job = member.maker.make(run)
    job = replace(job, settings=job.settings.model_copy(update={METRIC: RunFolder(run).settings().metric}))
    table = read_json(run / CLIENT_SCORES)
    if not table["clients"]:
        raise DataError(f"{run} has no test data of its own, so that there is nothing to compare.")
    row = keep_gain(member, job, saved_predictions(run, job, member.kit.number, table))
    return write_gain(run, job.settings.score_metric, [row] if row is not None else [compare_client(table, None, 0)])


def saved_predictions(run: Path, job: Job, client: int, table: dict[str, Any]) -> dict[str, Single]:
    """What the models in a node's run folder predict for the own test data."""
    runtime, found = ClientRuntime(job), dict[str, Single]()
    for kind, key, whose in (("shared", "client", None), ("personal", "personal", client)):
        if table[key][0] is not None:
            load_tensors(runtime.model, dict(Predictor.load(run, whose, changed_code=True).model.state_dict()))
            found[kind] = runtime.predict_local(client)
    return found
