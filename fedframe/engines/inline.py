"""Clients one after the other in this process: for one core, for a GPU, and for debugging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.stacked_training import stacks_of
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
        if self.runtime.job.trains_together and request.kind == "train":
            for group in stacks_of(units):
                yield from self.runtime.train_together(request, group)
            return
        for unit in units:
            yield self.runtime.perform(request, unit)

    def close(self) -> None:
        """Restore the threads and the random state of the process."""
        torch.set_num_threads(self._threads)
        torch.set_rng_state(self._random_state)
