"""TensorBoard, MLflow and Weights & Biases get what the run folder has; with the real libraries where they are."""

from __future__ import annotations

import json
import math
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedframe
from fedframe.errors import SettingError
from fedframe.runs import loggers
from fedframe.runs.loggers import Loggers, flat_settings, numbers
from fedframe.settings import Settings, logger_names
from tests.helpers import Recorder, blobs, same_file

SMALL: dict[str, Any] = {"model": "mlp:8", "rounds": 4, "batch": 8, "epochs": 1, "workers": 1, "partition": "user"}


class StopAfter(Recorder):
    """Ctrl-C after a round."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def round(self, record: Any) -> None:
        super().round(record)
        if record.round == self.last:
            raise KeyboardInterrupt


def run(folder: Path, **more: Any) -> list[dict[str, Any]]:
    """A run that is stopped after two of its rounds and resumed; its metrics."""
    with pytest.raises(KeyboardInterrupt):
        fedframe.run("fedavg", data=blobs(), out=folder, progress=StopAfter(2), **SMALL, **more)
    assert fedframe.resume(folder, data=blobs(), progress=False).summary
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_nothing_is_logged_unless_asked_for(tmp_path: Path) -> None:
    fedframe.run("fedavg", data=blobs(), out=tmp_path / "run", progress=False, **SMALL)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert not names & {"tensorboard", "mlflow.json", "wandb", "wandb.json"}


@pytest.mark.slow
def test_tensorboard_has_every_round_once_also_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'fedframe[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = run(tmp_path / "run", log="tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for name in ("generic", "client", "loss", "bytes_up"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in found] == [1, 2, 3, 4]
        assert [value for _, value in found] == pytest.approx([line[name] for line in lines])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (final,) = events.Scalars("final/scores/personal/final")
    assert final.value == pytest.approx(summary["scores"]["personal"]["final"])
    assert "settings/text_summary" in events.Tags()["tensors"]
    plain = fedframe.run("fedavg", data=blobs(), out=tmp_path / "plain", progress=False, **SMALL)
    assert same_file(plain.folder / "model.safetensors", tmp_path / "run" / "model.safetensors")


def test_tensorboard_takes_back_rounds_beyond_the_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'fedframe[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = Loggers(Settings(log="tensorboard"), tmp_path, print)
    for number in (1, 2, 3):
        first.round({"round": number, "loss": 1.0})
    first.close()
    second = Loggers(Settings(log="tensorboard"), tmp_path, print)  # the checkpoint was of round 1
    second.round({"round": 2, "loss": 2.0})
    second.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 2.0)]


@pytest.mark.slow
def test_mlflow_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in loggers.PACKAGES["mlflow"]:
        pytest.importorskip(package, reason="pip install 'fedframe[mlflow]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    lines = run(tmp_path / "run", log="mlflow", set={"fine_tune": {"epochs": 1}})
    from mlflow.tracking import MlflowClient

    kept = json.loads((tmp_path / "run" / "mlflow.json").read_text())
    assert kept["store"].endswith("mlflow.db")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    client = MlflowClient(kept["store"])
    (experiment,) = [e for e in client.search_experiments() if e.name == "fedframe"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == kept["run"]
    assert (found.info.run_name, found.info.status) == ("fedavg run", "FINISHED")
    assert found.data.params["lr"] == "0.1"
    assert found.data.params["fine_tune.epochs"] == "1"
    history = {metric.step: metric.value for metric in client.get_metric_history(kept["run"], "generic")}
    assert history == pytest.approx({line["round"]: line["generic"] for line in lines})
    assert "final/scores/generic/final" in found.data.metrics


@pytest.mark.slow
def test_wandb_is_offline_unless_asked_for_and_keeps_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'fedframe[wandb]'")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    lines = run(tmp_path / "run", log="wandb")
    name = json.loads((tmp_path / "run" / "wandb.json").read_text())["run"]
    files = sorted((tmp_path / "run" / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb"))
    assert len(files) == 2  # a session each, under one id
    found: dict[int, dict[str, Any]] = {}
    until = time.monotonic() + 300
    while len(found) < len(lines) and time.monotonic() < until:  # a process of its own writes, and may lag behind
        time.sleep(0.05)
        for path in files:
            found |= history(path)
    assert [*found] == [1, 2, 3, 4]
    assert [found[line["round"]]["generic"] for line in lines] == pytest.approx([line["generic"] for line in lines])


def history(path: Path) -> dict[int, dict[str, Any]]:
    """The steps in an offline file of Weights & Biases."""
    from wandb.proto import wandb_internal_pb2

    steps: dict[int, dict[str, Any]] = {}
    for data in records(path.read_bytes()):
        record: Any = getattr(wandb_internal_pb2, "Record")()  # noqa: B009 (generated: unknown to type checkers)
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            steps[int(items["_step"])] = items
    return steps


def records(content: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log: blocks of 32 KiB, each piece after its checksum, length and kind."""
    whole, first, middle, last = 1, 2, 3, 4
    place, parts = 7, b""  # after the file's own header
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # too little room for a piece: the next block
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        piece = content[place + 7 : place + 7 + length]
        if len(piece) < length:  # being written
            return
        place += 7 + length
        parts = piece if kind in (whole, first) else parts + piece
        assert kind in (whole, first, middle, last)
        if kind in (whole, last):
            yield parts


def test_wandb_mode_of_the_user_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'fedframe[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    logged = Loggers(Settings(log="wandb"), tmp_path, print)
    logged.round({"round": 1, "loss": 1.0})
    logged.close()
    assert not (tmp_path / "wandb").exists()


def test_missing_extra_is_a_sentence_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    for name in loggers.PACKAGES:
        with pytest.raises(SettingError, match=rf"pip install 'fedframe\[{name}\]'"):
            Loggers(Settings(log=name), tmp_path, print)


def test_unknown_logger_is_refused_before_anything_is_written() -> None:
    with pytest.raises(SettingError, match="there is no logger 'tensorbord'; did you mean 'tensorboard'"):
        fedframe.run("fedavg", log="tensorbord")
    assert logger_names(" tensorboard, wandb,tensorboard ,") == ["tensorboard", "wandb"]


class Fragile:
    """A logger that fails in its second round."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round(self, number: int, values: dict[str, float]) -> None:
        self.rounds.append(number)
        if number == 2:
            raise ConnectionError("the line\nis down")

    def end(self, values: dict[str, float]) -> None:
        raise AssertionError("it is no longer asked")

    def close(self) -> None:
        raise AssertionError("it is no longer asked")


def test_logger_that_fails_is_left_out_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fragile, notes = Fragile(), list[str]()

    def start(self: Loggers, name: str, first: int) -> None:
        assert self.open is not None
        self.open[name] = fragile

    monkeypatch.setattr(Loggers, "start", start)
    monkeypatch.setattr(loggers, "find_spec", lambda name: name)
    logged = Loggers(Settings(log="wandb"), tmp_path, notes.append)
    for number in (1, 2, 3):
        logged.round({"round": number, "loss": 1.0})
    logged.end({"seconds": 1.0})
    assert fragile.rounds == [1, 2]
    (note,) = notes
    assert "Logging to wandb has stopped (ConnectionError: the line is down)" in note


def test_numbers_are_found_by_their_path_and_settings_become_flat() -> None:
    content = {"a": 1, "b": {"c": 0.5, "d": None, "e": {"f": 2}}, "g": "text", "h": [1, 2], "i": True}
    assert numbers(content) == {"a": 1.0, "b/c": 0.5, "b/e/f": 2.0}
    assert math.isnan(numbers({"x": math.nan})["x"])
    flat = flat_settings(Settings(set={"prox": {"mu": 1}}).model_dump(mode="json"))
    assert flat["prox.mu"] == 1
    assert "set" not in flat
    assert "clip" not in flat
