"""The run folder: everything a run leaves behind, each file whole or absent.

config.yaml              every setting, re-runnable with --config
metrics.jsonl            a line per round
drift.jsonl              a line per round: each client's update beside the global one (with `measure: drift`)
local_models.safetensors class vectors and some features of the last round's local models (with `measure: local`)
checkpoint.safetensors   what a resumed run starts from
model.safetensors        the shared model with all that is needed to predict
summary.json             final scores with their definitions, time, memory
client_scores.json       the final scores client by client
examination.json         what `fedframe measure` found in the finished run
inputs.json              the user's own files and code that the result depends on, with digests, if there are any
privacy.key              with privacy_clip: who is drawn, and noise at clients, come from it; no part of the results
log.txt                  what happened on the way (a worker replaced, an update refused)
clients.json             the clients' names, where the data name them
letters/                 how many requests went to clients behind a network, and which was the newest there
clients/, personal/      private state and personal models, where a method has them
sums/                    single clients' sums, where a classifier was fitted from them: what it takes to fit without one
personal/joined/         personal models of clients that came after the training, by name
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from fedframe.core.job import personal_path
from fedframe.errors import DataError, RunError, SettingError, nearest
from fedframe.jobs.inputs import Input, changed_inputs
from fedframe.methods.recipes import method_label
from fedframe.settings import REMOTE_DATA, Settings, check, from_python, read_config, short_method
from fedframe.util.files import read_json, read_tensors, write_json, write_tensors, write_text
from fedframe.util.version import __version__

PATIENCE = 3.0  # seconds to wait for the workers of a killed run to end
CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
DRIFT = "drift.jsonl"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"
SUMMARY = "summary.json"
CLIENT_SCORES = "client_scores.json"
EXAMINATION = "examination.json"
INPUTS = "inputs.json"
LOG = "log.txt"
NAMES = "clients.json"
JOINED = Path("personal", "joined")
LOCK = ".lock"


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, out: str | Path | None, settings: Settings) -> RunFolder:
        """A new folder; one that holds a run already is refused, because nothing is ever overwritten."""
        path = Path(out) if out is not None else free_name(settings)
        if out is not None and path.is_dir() and any(path.iterdir()) and not (path / CONFIG).exists():
            raise SettingError(f"{path} holds other files; choose a new folder for --out, such as {path / 'run'}.")
        if (path / CONFIG).exists():
            raise SettingError(
                f"{path} already holds a run; go on with 'fedframe resume {path}' or choose another --out, "
                f"such as {path}-2."
            )
        try:
            path.mkdir(parents=True, exist_ok=out is not None)  # a name of our own is taken by one run only
        except OSError as error:
            raise SettingError(f"Cannot make the folder {path} ({error.strerror}); choose another --out.") from error
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run."""
        folder = Path(path)
        if not (folder / CONFIG).exists():
            raise DataError(f"{folder} is not a run folder: it has no {CONFIG}; 'fedframe run' makes one.")
        return cls(folder)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Work on the folder as the only process; the system lets go of it when the process ends, however it does.

        Worker processes inherit the lock, which filelock's would not do: they write private state too, so a folder is
        free only when the last of them is gone. Workers of a killed run end with it, but not in the same instant: hence
        the moment of patience.
        """
        try:
            lock = (self.path / LOCK).open("w")
        except OSError as error:
            raise RunError(f"{self.path} cannot be written to: {error.strerror}; use a folder of your own.") from error
        with lock as file:
            deadline = time.monotonic() + PATIENCE
            while fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        sentence = f"Another process is working on {self.path}; wait for it or stop it."
                        raise RunError(sentence) from error
                    time.sleep(0.02)
            yield

    @contextlib.contextmanager
    def removed_unless_begun(self) -> Iterator[None]:
        """Take a new folder away again if an error comes before the first round: there is nothing to go on with."""
        try:
            yield
        except BaseException:
            files = {path.name for path in self.path.iterdir()}
            if files <= {CONFIG, INPUTS, NAMES, LOCK, LOG}:  # whatever is trained has metrics.jsonl from the start
                for name in files:
                    (self.path / name).unlink()
                self.path.rmdir()
            raise

    # -- settings ------------------------------------------------------------------------------------------------------
    def write_settings(self, settings: Settings, again: str | None = None) -> None:
        """Keep the complete settings; `again` is the command that makes such a run once more, in this folder."""
        values = settings.model_dump(mode="json")
        if again is None:
            again = f"fedframe run --config {CONFIG}"
            if settings.data == REMOTE_DATA:
                again = "its organiser's fedframe federation start FOLDER --new (data are at the nodes)"
        head = f"# Fedframe {__version__}. Run again: {again}\n"
        write_text(self.path / CONFIG, head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True))

    def settings(self) -> Settings:
        """The settings of the run."""
        try:
            return check(read_config(self.path / CONFIG))
        except SettingError as error:
            raise DataError(f"{self.path / CONFIG} is not the settings of a run: {error}") from error

    def write_inputs(self, inputs: Sequence[Input], until_round: int | None = None) -> None:
        """Keep what the run depends on; with `until_round`, what it depended on up to that round is kept as well."""
        earlier = read_json(self.path / INPUTS) if until_round is not None else {}
        if inputs or earlier:
            before = (
                [*earlier.get("before", []), {"until_round": until_round, "files": earlier["files"]}] if earlier else []
            )
            files = [dataclasses.asdict(each) for each in inputs]
            write_json(self.path / INPUTS, {"files": files, **({"before": before} if before else {})})

    def inputs(self) -> list[Input]:
        """What the run depends on; empty if it has no files of the user's own, or an earlier version made it."""
        found = read_json(self.path / INPUTS)["files"] if (self.path / INPUTS).exists() else []
        return [Input(**each) for each in found]

    def changed_code(self) -> list[dict[str, Any]]:
        """After which finished rounds the run went on with other inputs, and their names; empty if it never did."""
        record = read_json(self.path / INPUTS) if (self.path / INPUTS).exists() else {}
        before = record.get("before", [])
        files = [each["files"] for each in before] + [record.get("files", [])]
        states = [[Input(**each) for each in listed] for listed in files]
        return [
            {"after_round": each["until_round"], "files": changed_inputs(*pair)}
            for each, pair in zip(before, pairwise(states), strict=True)
            if each["until_round"]
        ]

    def write_names(self, names: Sequence[str] | None) -> None:
        """Keep what the clients are called, where that is more than a number."""
        if names is not None:
            write_json(self.path / NAMES, list(names))

    def names(self) -> list[str]:
        """What the clients of the training are called; empty if they are numbers."""
        return list(read_json(self.path / NAMES)) if (self.path / NAMES).exists() else []

    def joined_path(self, name: str) -> Path:
        """Where the own model of a client that came after the training is kept."""
        return self.path / JOINED / f"{name}.safetensors"

    def personal_model(self, client: int | str) -> Path:
        """The file of a client's own model, by the client's name or number."""
        names = self.names()
        total = len(names) or self.settings().clients
        if isinstance(client, int) or (client not in names and client.isdecimal()):
            if total is not None and not 0 <= int(client) < total:
                raise SettingError(f"There is no client {client}; the clients are 0 to {total - 1}.")
            return self._own_or_later(int(client), names)
        if client in names:
            return self._own_or_later(names.index(client), names)
        joined = [path.stem for path in (self.path / JOINED).glob("*.safetensors")]
        if client in joined:
            return self.joined_path(client)
        known = nearest(client, [*names, *joined]) if names or joined else ""
        if not names and total is not None:
            known = f"{known} The clients of the training are 0 to {total - 1}.".strip()
        raise SettingError(f"There is no client {client!r}; {known}")

    def _own_or_later(self, client: int, names: Sequence[str]) -> Path:
        """Who missed the end of the training has no model from it, but may have made one later, under its name."""
        own = personal_path(self.path, client)
        later = self.joined_path(names[client]) if client < len(names) else own
        return later if later.exists() and not own.exists() else own

    # -- rounds --------------------------------------------------------------------------------------------------------
    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add a round's line."""
        self._append(METRICS, line)

    def append_drift(self, line: dict[str, Any]) -> None:
        """Add what was measured client by client in a round."""
        self._append(DRIFT, line)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of all rounds; a last line that was cut off is left out."""
        return self._lines(METRICS)

    def drift(self) -> list[dict[str, Any]]:
        """The lines of all rounds whose drift was measured."""
        return self._lines(DRIFT)

    def keep_metrics_until(self, round: int) -> list[dict[str, Any]]:
        """Drop lines of rounds that no checkpoint holds: they will be run again, with the same result."""
        self._keep_until(DRIFT, round)
        return self._keep_until(METRICS, round)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        try:
            with (self.path / name).open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(f"Could not write {self.path / name}: {error.strerror}; free some space.") from error

    def _lines(self, name: str) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        if (self.path / name).exists():
            for text in (self.path / name).read_text().splitlines():
                try:
                    lines.append(json.loads(text))
                except ValueError:
                    break
        return lines

    def _keep_until(self, name: str, round: int) -> list[dict[str, Any]]:
        lines = [line for line in self._lines(name) if line["round"] <= round]
        if name == METRICS or (self.path / name).exists():
            self._write_lines(name, lines)
        return lines

    def write_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Write the lines of all rounds anew."""
        self._write_lines(METRICS, lines)

    def _write_lines(self, name: str, lines: list[dict[str, Any]]) -> None:
        write_text(self.path / name, "".join(json.dumps(line) + "\n" for line in lines))

    def write_checkpoint(self, round: int, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """Keep what a resumed run starts from."""
        write_tensors(self.path / CHECKPOINT, tensors, {"round": round, **notes})

    def checkpoint(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """The last finished round and the server's tensors, if there is one."""
        if not (self.path / CHECKPOINT).exists():
            return None
        tensors, notes = read_tensors(self.path / CHECKPOINT)
        return int(notes["round"]), tensors, notes

    def log(self, text: str) -> None:
        """Note that something happened."""
        try:
            with (self.path / LOG).open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except OSError:
            return  # the log is a courtesy: a full disk ends the run where something would be lost

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / SUMMARY).exists()


def free_name(settings: Settings) -> Path:
    """A folder under runs/ that does not exist yet, named after method and data."""
    kind, colon, rest = settings.data.partition(":")
    data = Path(rest.partition("?")[0]).stem if colon else kind
    method = short_method(method_label(settings.method, settings.set))
    if from_python(settings.model_dump()):
        method = re.sub(r"[^\w.+=-]+", "-", method).strip("-")[:60]
    stem = f"{method}-{data}".replace("/", "-")
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path
