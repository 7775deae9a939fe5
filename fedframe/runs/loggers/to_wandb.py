"""Weights & Biases: offline in the run folder unless WANDB_MODE says otherwise; `wandb sync` uploads it later.

WANDB_PROJECT, WANDB_ENTITY and the like are W&B's own settings. The W&B run's id is kept in the run folder, so that a
resumed run goes on under it.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from fedframe.runs.loggers import flat_settings, run_name
from fedframe.util.files import read_json, write_json

KEPT = "wandb.json"
PROJECT = "fedframe"


class WeightsAndBiases:
    """Logs through the wandb package."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        # Nothing leaves the machine unless the user has asked for it, errors of the package included.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        if not (folder / KEPT).exists():
            write_json(folder / KEPT, {"run": uuid.uuid4().hex[:8]})
        mode = os.environ.get("WANDB_MODE", "offline")
        wait_for_free_name(folder)
        self.run = wandb.init(
            id=str(read_json(folder / KEPT)["run"]),
            name=run_name(folder, settings),
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(folder),
            config=flat_settings(settings),
            mode=mode,  # type: ignore[arg-type]
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(
                console="off", disable_git=True, save_code=False, silent=True, x_disable_stats=True
            ),
        )

    def round(self, number: int, values: dict[str, float]) -> None:
        """Log a round."""
        self.run.log(values, step=number)

    def end(self, values: dict[str, float]) -> None:
        """Final numbers as the run's summary."""
        self.run.summary.update(values)

    def close(self) -> None:
        """Write everything down."""
        self.run.finish()


def wait_for_free_name(folder: Path) -> None:
    """Wait, at most a second, until no session of the run has this second in its name: W&B would write over it."""
    while any((folder / "wandb").glob(f"*run-{time.strftime('%Y%m%d_%H%M%S')}-*")):
        time.sleep(0.02)


def open_logger(folder: Path, settings: dict[str, Any], first: int) -> WeightsAndBiases:
    """The logger of a run; W&B itself leaves out steps that it has already."""
    return WeightsAndBiases(folder, settings)
