"""FFC as a run uses it: however the data are split over clients, the classifier is that of the pooled data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.methods.parts.ffc import FFC
from tests.helpers import nothing
from tests.methods.toy import job_of

COUNT, DIM, CLASSES = 64, 8, 3
DEAD = (2, 5)

SPLITS = {
    "one client": np.zeros(COUNT, np.int64),
    "two alike": np.arange(COUNT) % 2,
    "one with a single sample": (np.arange(COUNT) > 0).astype(np.int64),
    "five uneven": np.arange(COUNT) ** 2 * 5 // COUNT**2,
    "one class each": None,  # by the labels
    "a client per sample": np.arange(COUNT),
}


def job_with(folder: Path, owner: np.ndarray[tuple[int], np.dtype[np.int64]] | None, *, dead: bool) -> Job:
    """Inputs of plus and minus one and a net of a few binary digits: every feature is exact in float32.

    Two features are never on if `dead`; two others are nearly one, and one is small, so that the ridge shows.
    """
    draw = np.random.default_rng(0)
    half = np.repeat([-1.0, 1.0], COUNT // 2)
    x = np.stack([draw.permutation(half) for _ in range(6)], 1).astype(np.float32)  # mean 0, deviation 1
    y = draw.integers(0, CLASSES, COUNT)
    data = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "user_train": y if owner is None else owner}
    job = job_of(folder, FFC(), data=data, model=f"mlp:{DIM}", local_test=0.0, min_client_size=1)
    weight = torch.from_numpy(draw.integers(-3, 4, (DIM, 6))).float()
    weight[3] = weight[4]
    bias = torch.tensor([1, 0, 1, 2, 2, 1, 3, 2]).float()
    weight[3, 0] += 2**-6
    weight[7] *= 2**-7
    weight[1] *= 1 + 2**-11  # squares need more digits than float32 has
    if dead:
        weight[list(DEAD)], bias[list(DEAD)] = 0.0, -1.0
    state = job.template.backbone.state_dict()
    state["layers.0.weight"].copy_(weight)
    state["layers.0.bias"].copy_(bias)
    return job


def pooled_ridge(job: Job) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(sum z z' + 1e-6 tr/dim I)^-1 sum z onehot' over all samples, one by one."""
    state = {name: tensor.double().numpy() for name, tensor in job.template.backbone.state_dict().items()}
    samples = job.federation.source.train
    inputs = samples.x.take(torch.arange(COUNT)).double().numpy()
    v, u = np.zeros((DIM, DIM)), np.zeros((DIM, CLASSES))
    for x, label in zip(inputs, samples.y.tolist(), strict=True):
        z = np.maximum(state["layers.0.weight"] @ x + state["layers.0.bias"], 0)
        v += np.outer(z, z)
        u[:, label] += z
    return np.linalg.solve(v + 1e-6 * np.trace(v) / DIM * np.eye(DIM), u)


@pytest.mark.parametrize("dead", [False, True], ids=["all alive", "dead features"])
@pytest.mark.parametrize("split", SPLITS)
def test_any_split_gives_the_pooled_ridge_solution_at_the_default_ridge(tmp_path: Path, split: str, dead: bool) -> None:
    job = job_with(tmp_path, SPLITS[split], dead=dead)
    assert job.federation.train.values.sort().values.tolist() == list(range(COUNT))
    part = job.method.slot("server_stage")
    assert part == FFC()
    server = Server(job, InlineEngine(job), nothing)
    part.server_stage(server, server.ask_everyone("statistics", job.expected("statistics"), nothing))
    found, expected = server.tensor("head.weight").double().T.numpy(), pooled_ridge(job)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert (np.abs(expected[DEAD, :]).max() == 0) == dead
    assert not server.tensor("head.bias").any()
