"""What a run writes round by round: lines and checkpoints, and what can be done when some of it is damaged."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from fedframe.errors import DamageError, DataError
from fedframe.runs import round_lines
from fedframe.util.files import read_json, read_tensors, write_tensors

METRICS = "metrics.jsonl"
DRIFT = "drift.jsonl"
CHECKPOINT = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
SUMMARY = "summary.json"
COPY = "lines/"  # in a checkpoint: copies of the files with a line per round


class RoundFiles:
    """The files of a run's rounds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / SUMMARY).exists()

    # -- rounds --------------------------------------------------------------------------------------------------------
    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add a round's line."""
        round_lines.append(self.path / METRICS, line)

    def append_drift(self, line: dict[str, Any]) -> None:
        """Add what was measured client by client in a round."""
        round_lines.append(self.path / DRIFT, line)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of all rounds; a last line that was cut off is left out."""
        return self._lines(METRICS)

    def drift(self) -> list[dict[str, Any]]:
        """The lines of all rounds whose drift was measured."""
        return self._lines(DRIFT)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        found = round_lines.read(self.path / name)
        if found.broken:
            raise self.with_remedy(round_lines.damaged(self.path / name, found.broken))
        if self.finished and len(found.good) < self.read(SUMMARY).get("lines", {}).get(name, 0):
            raise self.with_remedy(round_lines.damaged(self.path / name, [], [len(found.good) + 1]))
        return found.good

    def keep_metrics_until(self, round: int) -> tuple[list[dict[str, Any]], list[str]]:
        """Drop lines of rounds that no checkpoint holds: they will be run again, with the same result.

        Gives the lines of metrics, and sentences on lines that were damaged and put back.
        """
        copies = self.copied_lines()
        found = {}
        try:
            for name in (DRIFT, METRICS):
                found[name] = round_lines.mended(self.path / name, copies.get(name), round, every=name == METRICS)
                if name == METRICS or found[name][0] or (self.path / name).exists():
                    round_lines.write(self.path / name, found[name][0])
        except DamageError as error:
            raise self.with_remedy(error, lines_are_copied=bool(copies)) from error
        return found[METRICS][0], [text for _, text in found.values() if text is not None]

    def damaged_lines(self) -> DamageError | None:
        """The first file with a line per round in which lines are damaged or missing; None if all is well."""
        copies: dict[str, Tensor] = {}
        with contextlib.suppress(DamageError):  # whoever needs the checkpoint itself says so
            copies = self.copied_lines()
        expected = self.read(SUMMARY).get("lines", {}) if self.finished else {}
        for name in (METRICS, DRIFT):
            copied = round_lines.parse(copies[name].numpy().tobytes()).rounds if name in copies else set()
            found = round_lines.read(self.path / name)
            if found.broken or copied - found.rounds or len(found.good) < expected.get(name, 0):
                lost = sorted(copied - found.rounds) or [len(found.good) + 1]
                return round_lines.damaged(self.path / name, found.broken, lost)
        return None

    def write_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Rewrite the lines of all rounds."""
        round_lines.write(self.path / METRICS, lines)

    def write_checkpoint(self, round: int, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """Keep what a resumed run starts from; the last one stays beside it, to go back to if this one is damaged."""
        copies = {f"{COPY}{name}": round_lines.copy_of(self.path / name) for name in (METRICS, DRIFT)}
        self._set_aside()
        kept = {name: copy for name, copy in copies.items() if copy is not None}
        write_tensors(self.path / CHECKPOINT, {**tensors, **kept}, {"round": round, **notes})

    def _set_aside(self) -> None:
        """Keep the checkpoint under its second name too: by a link, so that at every moment there is one."""
        current, draft = self.path / CHECKPOINT, self.path / f".{PREVIOUS}.{os.getpid()}.part"
        with contextlib.suppress(OSError):  # it is a spare: a disk that has no room for it is not the end of the run
            if current.exists():
                draft.unlink(missing_ok=True)
                try:
                    os.link(current, draft)
                except OSError:  # a file system without links
                    shutil.copyfile(current, draft)
                draft.replace(self.path / PREVIOUS)

    def checkpoint(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """The last finished round and the server's tensors, if there is one."""
        if not (self.path / CHECKPOINT).exists():
            if (self.path / PREVIOUS).exists():
                raise self.with_remedy(DamageError(f"There is no {self.path / CHECKPOINT}.", self.path / CHECKPOINT))
            return None
        try:
            round, tensors, notes = self._checkpoint_in(CHECKPOINT)
        except DamageError as error:
            raise self.with_remedy(error) from error
        return round, {name: tensor for name, tensor in tensors.items() if not name.startswith(COPY)}, notes

    def _checkpoint_in(self, name: str) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
        tensors, notes = read_tensors(self.path / name)
        if type(notes.get("round")) is not int or "model" not in tensors or "fingerprint" not in notes:
            raise DamageError(f"{self.path / name} is damaged: it is no checkpoint of a run.", self.path / name)
        return notes["round"], tensors, notes

    def copied_lines(self) -> dict[str, Tensor]:
        """The checkpoint's copies of files with a line per round, by file; none in those of earlier versions."""
        if not (self.path / CHECKPOINT).exists():
            return {}
        tensors = self._checkpoint_in(CHECKPOINT)[1]
        return {name.removeprefix(COPY): tensor for name, tensor in tensors.items() if name.startswith(COPY)}

    # -- damage --------------------------------------------------------------------------------------------------------
    def rounds_kept(self) -> dict[int, str]:
        """The rounds that the run can go on from, each with its checkpoint; damaged ones are left out."""
        found = {}
        for name in (PREVIOUS, CHECKPOINT):
            with contextlib.suppress(DataError):
                found[self._checkpoint_in(name)[0]] = name
        return found

    def with_remedy(self, error: DamageError, lines_are_copied: bool = True) -> DamageError:
        """The same error with what can still be done about a damaged file of this run."""
        rounds = sorted(self.rounds_kept(), reverse=True) if lines_are_copied else []
        again = f"'fedframe resume {self.path} --from-round"
        if rounds:
            text = (
                f"Put the file back, or make it again from round {rounds[0]}, to the same result: {again} {rounds[0]}'."
            )
        else:
            text = f"Put the file back, or train again from the start: {again} 0'."
        return DamageError(f"{error} {text}", error.path)

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the run that holds an object."""
        try:
            return read_json(self.path / name)
        except DamageError as error:
            raise self.with_remedy(error) from error

    def read_model(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A model of the run, shared or a client's own."""
        try:
            return read_tensors(path)
        except DamageError as error:
            raise self.with_remedy(error) from error
