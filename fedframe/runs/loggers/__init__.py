"""Loggers beside the run folder: TensorBoard, MLflow, Weights & Biases; off unless the setting `log` names them.

A logger gets every round's line of metrics.jsonl, the settings as hyperparameters and the final summary. It is opened
with the first round, after worker processes have been forked. The run folder stays the record: a logger that fails is
left out with a note, and the run goes on. A resumed run goes on in the same place.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from fedframe.errors import SettingError
from fedframe.settings import logger_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from fedframe.settings import Settings

# The logger's name, which is also its extra's, and the packages that it needs.
PACKAGES = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic"), "wandb": ("wandb",)}


class Logger(Protocol):
    """A place that a run is logged to; made by its file's `open_logger(folder, settings, first)`."""

    def round(self, number: int, values: dict[str, float]) -> None:
        """A finished round's scores and figures."""

    def end(self, values: dict[str, float]) -> None:
        """The run is finished: its final scores and costs."""

    def close(self) -> None:
        """Nothing more will be logged, for now or at all."""


def refuse_missing(names: Iterable[str]) -> None:
    """Say which package a logger lacks, and how to get it or do without."""
    for name in names:
        if any(find_spec(package) is None for package in PACKAGES[name]):
            raise SettingError(
                f"log = {name!r} needs a package that is not installed: pip install 'fedframe[{name}]'; or go without "
                "it: leave --log out (of a run that was started, in its config.yaml)."
            )


class Loggers:
    """The loggers of a run, none of which can hurt it."""

    def __init__(self, settings: Settings, folder: Path, note: Callable[[str], None]) -> None:
        self.settings, self.folder, self.note = settings, folder, note
        self.names = logger_names(settings.log)
        refuse_missing(self.names)
        self.open: dict[str, Logger] | None = None

    def round(self, line: dict[str, Any]) -> None:
        """Hand a round's line to all loggers; the first one opens them."""
        if not self.names:
            return
        number = int(line["round"])
        if self.open is None:
            self.open = {}
            for name in self.names:
                self.attempt(name, self.start, name, number)
        values = {name: value for name, value in numbers(line).items() if name != "round"}
        for name, logger in [*self.open.items()]:
            self.attempt(name, logger.round, number, values)

    def end(self, summary: dict[str, Any]) -> None:
        """Hand over the final scores and costs, and close."""
        if not self.names:
            return
        if self.open is None:  # all rounds were run, and logged, before a stop
            self.open = {}
            for name in self.names:
                self.attempt(name, self.start, name, self.settings.rounds + 1)
        values = {f"final/{name}": value for name, value in numbers(summary).items() if name not in ("seed", "rounds")}
        for name, logger in [*self.open.items()]:
            self.attempt(name, logger.end, values)
        self.close()

    def close(self) -> None:
        """Close what is open."""
        for name, logger in [*(self.open or {}).items()]:
            self.attempt(name, logger.close)
        self.open = {}

    def start(self, name: str, first: int) -> None:
        """Open a logger; `first` is the first round that it will see."""
        assert self.open is not None
        module = import_module(f"{__name__}.to_{name}")
        self.open[name] = module.open_logger(self.folder, self.settings.model_dump(mode="json"), first)

    def attempt(self, name: str, action: Callable[..., None], *given: Any) -> None:
        """Do something with a logger; if it fails, go on without it."""
        try:
            action(*given)
        except Exception as error:  # whatever a foreign library, disk or network comes up with
            if self.open is not None:
                self.open.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.note(f"Logging to {name} has stopped ({reason}); the run goes on, and its own files are complete.")


def numbers(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a nested dictionary, by their path; lists and texts are left to the run folder."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = float(value)
    return found


def flat_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as hyperparameters: settings of parts by `part.name`, nothing that is not set."""
    plain = {name: value for name, value in settings.items() if name != "set" and value not in (None, "")}
    return plain | {f"{part}.{name}": value for part, each in settings["set"].items() for name, value in each.items()}


def run_name(folder: Path, settings: dict[str, Any]) -> str:
    """What a run is called elsewhere: its folder's name, with the method where that does not tell it (seed-0)."""
    method = str(settings["method"])
    return folder.name if method in folder.name else f"{method} {folder.name}"
