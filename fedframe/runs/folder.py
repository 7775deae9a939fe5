"""The run folder: everything a run leaves behind, each file whole or absent.

config.yaml              every setting, re-runnable with --config
metrics.jsonl            a line per round
drift.jsonl              a line per round: each client's update beside the global one (with `measure: drift`)
local_models.safetensors class vectors and some features of the last round's local models (with `measure: local`)
checkpoint.safetensors   what a resumed run starts from, and checkpoint.previous.safetensors that of a round earlier
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
sums/                    single clients' statistics, where a model was fitted from them: to fit it without one
roster.json              who has joined or was forgotten after the training, and when
personal/joined/         personal models of clients that came after the training, by name

Every file that is read back has a checksum (`util/checksums.py`); what does not fit it is a DamageError that says what
can still be done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from fedframe.core.job import personal_path
from fedframe.errors import DamageError, DataError, RunError, SettingError, nearest
from fedframe.jobs.inputs import Input, changed_inputs
from fedframe.methods.recipes import method_label
from fedframe.runs.round_files import RoundFiles
from fedframe.runs.staging import apply, is_pending
from fedframe.settings import REMOTE_DATA, Settings, check, from_python, parse_config, short_method
from fedframe.util.checksums import BLANK, IN_YAML, crc, digits, intact, sealed
from fedframe.util.files import read_json, write_bytes, write_json
from fedframe.util.plain_files import read_bytes
from fedframe.util.version import __version__

PATIENCE = 3.0  # seconds to wait for the workers of a killed run to end
CONFIG = "config.yaml"
MODEL = "model.safetensors"
CLIENT_SCORES = "client_scores.json"
EXAMINATION = "examination.json"
INPUTS = "inputs.json"
LOG = "log.txt"
NAMES = "clients.json"
JOINED = Path("personal", "joined")
LOCK = ".lock"
BEFORE_CONFIG = {INPUTS, NAMES, LOCK, LOG}  # what a run that died at its very start may leave: config.yaml comes last


class RunFolder(RoundFiles):
    """One run's files."""

    @classmethod
    def create(cls, out: str | Path | None, settings: Settings) -> RunFolder:
        """A new folder; one that holds a run already is refused, because nothing is ever overwritten."""
        path = Path(out) if out is not None else free_name(settings)
        if out is not None and path.is_dir() and not (path / CONFIG).exists() and not cls(path).is_unborn():
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

    def is_unborn(self) -> bool:
        """Whether the folder holds no more than a run leaves that died before it had its settings."""
        names = {path.name for path in self.path.iterdir()}
        return all(name in BEFORE_CONFIG or (name.startswith(".") and name.endswith(".part")) for name in names)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run."""
        folder = Path(path)
        if not (folder / CONFIG).exists():
            raise DataError(f"{folder} is not a run folder: it has no {CONFIG}; 'fedframe run' makes one.")
        found = cls(folder)
        if is_pending(folder):  # of a process that was killed while it moved what counts already
            with found.alone():
                if is_pending(folder):
                    apply(folder)
        return found

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
            if files <= {CONFIG, *BEFORE_CONFIG}:  # whatever is trained has metrics.jsonl from the start
                for name in files:
                    (self.path / name).unlink()
                self.path.rmdir()
            raise

    def mend(self) -> list[str]:
        """Put damaged lines back from the checkpoint; gives sentences on what was damaged, none if all is well."""
        damage = self.damaged_lines()
        if damage is None:
            return []
        kept = self.rounds_kept()
        if not kept:
            raise self.with_remedy(damage)
        with self.alone():  # a run that goes on adds lines
            mended = self.keep_metrics_until(max(kept))[1]
        if (left := self.damaged_lines()) is not None:
            raise self.with_remedy(left)
        return mended

    # -- settings ------------------------------------------------------------------------------------------------------
    def write_settings(self, settings: Settings, again: str | None = None) -> None:
        """Keep the complete settings; `again` is the command that makes such a run once more, in this folder."""
        values = settings.model_dump(mode="json")
        if again is None:
            again = f"fedframe run --config {CONFIG}"
            if settings.data == REMOTE_DATA:
                again = "its organiser's fedframe federation start FOLDER --new (data are at the nodes)"
        lines = [f"# Fedframe {__version__}. Run again: {again}", f"{IN_YAML.decode()}{BLANK.decode()}"]
        if (self.path / NAMES).exists():
            lines.append(f"# {NAMES}: {digits(crc(read_bytes(self.path / NAMES))).decode()}")
        text = "\n".join([*lines, yaml.safe_dump(values, sort_keys=False, allow_unicode=True)])
        write_bytes(self.path / CONFIG, *sealed(text.encode(), IN_YAML))

    def config(self) -> dict[str, Any]:
        """The settings as they stand in the file, unchecked."""
        path = self.path / CONFIG
        content = read_bytes(path)
        head = content.split(b"\n", 3)[:2]
        whole = intact(content, IN_YAML) if any(line.startswith(IN_YAML) for line in head) else None
        if whole is False or (whole is None and any(b"checksum" in line for line in head)):
            raise DamageError(
                f"{path} is damaged or was edited: its checksum does not fit its content. Put it back as it was, or "
                f"take its line '{IN_YAML.decode()}...' out to use it as it is.",
                path,
            )
        values = parse_config(content, path)
        if not values.get("method") or not values.get("data"):
            raise DamageError(
                f"{path} names no method and no data: it is not the settings of a run. Put it back.", path
            )
        return values

    def settings(self) -> Settings:
        """The settings of the run."""
        try:
            return check({"task": "classification", **self.config()})  # earlier versions knew no other
        except SettingError as error:
            raise DamageError(f"{self.path / CONFIG} is not the settings of a run: {error}", self.path) from error

    def write_inputs(self, inputs: Sequence[Input], until_round: int | None = None) -> None:
        """Keep what the run depends on; with `until_round`, what it depended on up to that round is kept as well."""
        earlier = self._record() if until_round is not None else {}
        if inputs or earlier:
            before = (
                [*earlier.get("before", []), {"until_round": until_round, "files": earlier["files"]}] if earlier else []
            )
            files = [dataclasses.asdict(each) for each in inputs]
            write_json(self.path / INPUTS, {"files": files, **({"before": before} if before else {})})

    def inputs(self) -> list[Input]:
        """What the run depends on; empty if it has no files of the user's own, or an earlier version made it."""
        return self._inputs_in(self._record().get("files", []))

    def _record(self) -> dict[str, Any]:
        path = self.path / INPUTS
        try:
            return read_json(path) if path.exists() else {}
        except DamageError as error:
            how = "Put it back, or take it away: then nobody notices if files of your own have changed since."
            raise DamageError(f"{error} {how}", path) from error

    def _inputs_in(self, found: Any) -> list[Input]:
        try:
            return [Input(**each) for each in found]
        except TypeError as error:
            raise DamageError(f"{self.path / INPUTS} is damaged: it lists no inputs of a run.", self.path) from error

    def changed_code(self) -> list[dict[str, Any]]:
        """After which finished rounds the run went on with other inputs, and their names; empty if it never did."""
        record = self._record()
        before = record.get("before", [])
        files = [each["files"] for each in before] + [record.get("files", [])]
        states = [self._inputs_in(listed) for listed in files]
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
        path = self.path / NAMES
        if not path.exists():
            return []
        try:
            names = read_json(path, list)
        except DamageError as error:
            raise DamageError(f"{error} Put it back: it is the list of the clients' names.", path) from error
        mark = f"# {NAMES}: ".encode()
        noted = [line for line in read_bytes(self.path / CONFIG)[:4096].split(b"\n")[:3] if line.startswith(mark)]
        if not all(isinstance(name, str) for name in names) or (
            noted and noted[0] != mark + digits(crc(read_bytes(path)))
        ):
            raise DamageError(f"{path} is damaged: it is not as it was when {CONFIG} was written; put it back.", path)
        return names

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

    def log(self, text: str) -> None:
        """Note that something happened."""
        try:
            with (self.path / LOG).open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except OSError:
            return  # the log is a courtesy: a full disk ends the run where something would be lost


def is_run_config(path: Path) -> bool:
    """Whether a config file was written by Fedframe, as that of a run folder is, and not by a person."""
    with contextlib.suppress(DataError):
        return read_bytes(path).startswith(b"# Fedframe ")
    return False


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
