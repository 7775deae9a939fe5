"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, by default mlflow.db in the working folder.

`mlflow ui` from that folder shows it (it comes with the full `mlflow` package).
The experiment is MLFLOW_EXPERIMENT_NAME or "fedframe". The MLflow run's id is kept in the run folder, so that a
resumed run goes on in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedframe.runs.loggers import flat_settings, run_name
from fedframe.util.files import read_json, write_json

KEPT = "mlflow.json"  # in the run folder: where it is logged to
EXPERIMENT = "fedframe"


class MLflow:
    """Logs through MLflow's client, which keeps no state of its own."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        # MLflow reports its own usage unless told not to: nothing calls home unless the user wants it.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        import mlflow.entities
        from mlflow.tracking import MlflowClient

        self.entities = mlflow.entities
        known = read_json(folder / KEPT) if (folder / KEPT).exists() else {}
        place = os.environ.get("MLFLOW_TRACKING_URI") or known.get("store") or local_store()
        with alone(place):  # two runs that make the same data base at the same moment would both fail
            self.client = MlflowClient(tracking_uri=place)
            if known.get("store") == place:
                self.id = str(known["run"])
                self.client.update_run(self.id, status="RUNNING")
            else:
                self.id = self.start(folder, flat_settings(settings))
                write_json(folder / KEPT, {"store": place, "run": self.id})

    def start(self, folder: Path, settings: dict[str, Any]) -> str:
        """A new MLflow run with the settings as its parameters."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self.client.create_experiment(name)
        run = self.client.create_run(experiment, run_name=run_name(folder, settings))
        params = [self.entities.Param(key, str(value)[:500]) for key, value in settings.items()]
        self.client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)

    def round(self, number: int, values: dict[str, float]) -> None:
        """Log a round in one request."""
        now = int(1000 * time.time())
        metrics = [self.entities.Metric(name, value, now, number) for name, value in values.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def end(self, values: dict[str, float]) -> None:
        """Final numbers; the MLflow run is finished."""
        self.round(0, values)
        self.client.set_terminated(self.id, "FINISHED")

    def close(self) -> None:
        """A run that was stopped before its end says so."""
        if self.client.get_run(self.id).info.status == "RUNNING":
            self.client.set_terminated(self.id, "KILLED")


def local_store() -> str:
    """A data base in the working folder, shared by the runs that are started there."""
    return f"sqlite:///{Path('mlflow.db').absolute().as_posix()}"


@contextlib.contextmanager
def alone(place: str) -> Iterator[None]:
    """One process at a time with a store."""
    name = hashlib.blake2b(place.encode(), digest_size=8).hexdigest()
    with FileLock(Path(tempfile.gettempdir()) / f"fedframe-mlflow-{name}.lock"):
        yield


def open_logger(folder: Path, settings: dict[str, Any], first: int) -> MLflow:
    """The logger of a run; rounds that come again have the same values, so `first` does not matter."""
    return MLflow(folder, settings)
