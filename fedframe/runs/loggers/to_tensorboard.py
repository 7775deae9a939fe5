"""TensorBoard: event files in the run folder, so that `tensorboard --logdir runs` shows all runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedframe.runs.loggers import flat_settings

FOLDER = "tensorboard"


class TensorBoard:
    """Writes event files."""

    def __init__(self, folder: Path, settings: dict[str, Any], first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.settings = flat_settings(settings)
        # Rounds that a killed run had logged beyond its last checkpoint come again: what was there is taken back.
        purge = first if (folder / FOLDER).exists() else None
        self.writer = SummaryWriter(str(folder / FOLDER), purge_step=purge)
        if purge is None:
            table = "\n".join(
                ["| setting | value |", "|---|---|", *(f"| {k} | {v} |" for k, v in self.settings.items())]
            )
            self.writer.add_text("settings", table)

    def round(self, number: int, values: dict[str, float]) -> None:
        """Write a round and flush: a killed run has lost nothing that its checkpoint has."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, number)
        self.writer.flush()

    def end(self, values: dict[str, float]) -> None:
        """Final numbers beside the hyperparameters, for the page HPARAMS."""
        plain = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in self.settings.items()}
        self.writer.add_hparams(plain, values, run_name=".")

    def close(self) -> None:
        """Flush and close."""
        self.writer.close()


def open_logger(folder: Path, settings: dict[str, Any], first: int) -> TensorBoard:
    """The logger of a run."""
    return TensorBoard(folder, settings, first)
