"""Flower carries the messages, our core does the learning. Nothing here is imported unless an engine of Flower is used;
the extra `fedframe[flower]` pins the version that this was written for and tested with.
"""

from __future__ import annotations

from collections.abc import Callable

from fedframe.core.job import Job
from fedframe.network.compatibility import check_local_deployment
from fedframe.network.engine import NetworkEngine
from fedframe.network.flower.environment import quiet_logs

__all__ = ["open_flower"]


def open_flower(job: Job, notify: Callable[[str], None]) -> NetworkEngine:
    """Start the engine `flower` (real processes on this machine) or `flower-sim` (Ray)."""
    check_local_deployment(job)
    quiet_logs()
    if job.settings.engine == "flower-sim":
        from fedframe.network.flower.simulation import open_simulation

        return open_simulation(job, notify)
    from fedframe.network.flower.local_deployment import open_local_deployment

    return open_local_deployment(job, notify)
