"""The result of a run, read from its folder: scores, history and models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedframe.jobs.build import Net
from fedframe.runs.changes import CodeCheck, refuse_changed_code
from fedframe.runs.folder import RunFolder
from fedframe.runs.personalise import NewClient, personalise
from fedframe.runs.predictor import Predictor
from fedframe.runs.round_files import SUMMARY
from fedframe.settings import Settings


@dataclass(frozen=True)
class RunResult:
    """What a run gave: its folder, and from it scores, history and models."""

    folder: Path  # the run folder
    settings: Settings  # of the run, with every default
    net: Net = "auto"  # the net that it was trained with
    code_check: CodeCheck = "all"  # of the code that models are loaded with

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Everything in summary.json: final scores, definitions, time, memory."""
        return RunFolder(self.folder).read(SUMMARY)

    @property
    def scores(self) -> dict[str, dict[str, float | None]]:
        """Final scores: `result.scores["generic"]["last"]`."""
        scores: dict[str, dict[str, float | None]] = self.summary["scores"]
        return scores

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """A dictionary per round."""
        return RunFolder(self.folder).metrics()

    @cached_property
    def model(self) -> Predictor:
        """The shared model, ready to predict."""
        return self.personal(None)

    def personal(self, client: int | str | None) -> Predictor:
        """A client's own model, by number or name, ready to predict."""
        net = None if isinstance(self.net, str) else self.net
        refuse_changed_code(self.folder, net, self.code_check)
        return Predictor.load(self.folder, client=client, net=net, changed_code=True)

    def personalise(self, data: object, **options: Any) -> NewClient:
        """Make a personal model for a client that was not in the training; options as in `fedframe.personalise`."""
        net = None if isinstance(self.net, str) else self.net
        if not options.pop("changed_code", False):
            refuse_changed_code(self.folder, net, self.code_check)
        return personalise(self.folder, data, model=net, changed_code=True, **options)
