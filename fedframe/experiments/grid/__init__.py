"""Many runs as one piece of work: cells, each a run folder; what is finished stays, what was cut off goes on."""

from fedframe.experiments.grid.cell import Cell, Outcome, outcome_of
from fedframe.experiments.grid.display import choose_grid_display
from fedframe.experiments.grid.run import run_cells
from fedframe.experiments.grid.scores import Figure, read_score

__all__ = ["Cell", "Figure", "Outcome", "choose_grid_display", "outcome_of", "read_score", "run_cells"]
