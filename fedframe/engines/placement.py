"""Data on a GPU: copied there once per process, where they fit beside the model."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedframe.core.job import Job
from fedframe.data.source import ArrayInputs

SHARE = 0.25  # of the memory that is free on the device, for the samples of all its processes together


def place_data(job: Job, processes: int = 1) -> Job:
    """The job with its training samples on its device, if they are in memory and small beside what is free there.

    `processes` is how many share the device. Augmented images stay where they are: they are drawn on the processor.
    """
    inputs = job.federation.source.train.x
    if job.device == "cpu" or job.settings.augment != "none" or not isinstance(inputs, ArrayInputs):
        return job
    if inputs.tensor.nbytes * processes > SHARE * free_on(job.device):
        return job
    source, train = job.federation.source, job.federation.source.train
    there = replace(train, x=ArrayInputs(inputs.tensor.to(job.device)))
    return replace(job, federation=replace(job.federation, source=replace(source, train=there)))


def free_on(device: str) -> int:
    """Bytes that are free on a GPU; where that cannot be asked (Apple's share the machine's), none."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.startswith("cuda") else 0
