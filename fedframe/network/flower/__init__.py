"""Flower carries the messages, our core does the learning. Nothing here is imported unless an engine of Flower is asked
for; the extra `fedframe[flower]` pins the version that this was written for and tried with.
"""

from __future__ import annotations

from collections.abc import Callable

from fedframe.core.job import Job
from fedframe.network.compatibility import check_fit
from fedframe.network.engine import NetworkEngine
from fedframe.network.flower.environment import quiet

__all__ = ["open_flower"]


def open_flower(job: Job, note: Callable[[str], None]) -> NetworkEngine:
    """Start the engine `flower` (real processes on this machine) or `flower-sim` (Ray)."""
    check_fit(job)
    quiet()
    if job.settings.engine == "flower-sim":
        from fedframe.network.flower.simulation import open_simulation

        return open_simulation(job, note)
    from fedframe.network.flower.local_deployment import open_here

    return open_here(job, note)
