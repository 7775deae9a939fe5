"""Clients one after the other in this process: for one core, for a GPU, and for debugging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fedframe.core.client_groups import group_request, grouped, single_request
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.engines.placement import place_data


class InlineEngine(Engine):
    """Runs every request in this process, with one torch thread so that results equal those of worker processes."""

    def __init__(self, job: Job) -> None:
        self._threads = torch.get_num_threads()
        self._random_state = torch.get_rng_state()
        if job.device == "cpu":
            torch.set_num_threads(1)
        self.runtime = ClientRuntime(place_data(job))

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Perform the request for every unit, lazily."""
        if grouped(self.runtime.job, request):
            joined, groups = group_request(request, units)
            for group in groups:
                yield from self.runtime.train_together(*single_request(joined, group))
            return
        for unit in units:
            yield self.runtime.perform(request, unit)

    def close(self) -> None:
        """Restore the threads and the random state of the process."""
        torch.set_num_threads(self._threads)
        torch.set_rng_state(self._random_state)
