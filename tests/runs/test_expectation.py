"""The default net, and what a run says before its first round of how long it will take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedframe.core.job import Job
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.models import default_net
from fedframe.runs.expectation import expectation, expected, time_batch
from fedframe.util.text import duration
from tests.helpers import blobs


def make_job(**settings: object) -> Job:
    asked = {
        "method": "fedavg",
        "data": "python",
        "model": "mlp:8",
        "rounds": 10,
        "epochs": 2,
        "workers": 1,
        **settings,
    }
    return JobMaker(gather(asked, None), blobs(), None).make(Path())


@pytest.mark.parametrize(
    ("shape", "samples", "device", "net"),
    [
        ((20,), 10**6, "cuda", "mlp"),
        ((1, 8, 8), 10**6, "cuda", "mlp"),
        ((3, 32, 32), 50_000, "cuda", "convnet"),
        ((3, 64, 64), 196, "cpu", "convnet"),
        ((3, 64, 64), 100_000, "cpu", "convnet"),
        ((3, 64, 64), 196, "cuda:1", "convnet"),
        ((3, 64, 64), 100_000, "cuda:1", "resnet18"),
        ((3, 224, 224), 400, "cpu", "resnet20"),
    ],
)
def test_a_large_net_is_the_default_only_for_many_samples_on_a_gpu(
    shape: tuple[int, ...], samples: int, device: str, net: str
) -> None:
    assert default_net(shape, samples, device) == net


def test_what_is_expected_is_the_time_of_a_batch_times_all_batches() -> None:
    job = make_job()
    total = int(job.federation.train.sizes().sum())
    (said,) = expected(job, samples=10, seconds=10.0, left=4)  # a second per sample
    each = 2.0 * total  # two epochs, one process
    assert f"about {duration(each)} a round, {duration(4 * each)} for 4" in said
    assert "--model" not in said  # vectors: there is no smaller net to name
    assert expected(job, 10, 10.0 * 50 / each / 4, 4) == []  # below a minute
    half = make_job(participation=0.5)
    (said,) = expected(half, 10, 10.0, 4)
    assert f"about {duration(each * half.clients_per_round / len(half.federation))} a round" in said


def test_a_batch_is_timed_without_a_trace_in_the_run(tmp_path: Path) -> None:
    job = make_job()
    torch.manual_seed(3)
    expected_draw = torch.rand(4)
    torch.manual_seed(3)
    samples, seconds = time_batch(job)
    assert torch.equal(torch.rand(4), expected_draw)
    assert samples == min(job.settings.batch, int(job.federation.train.sizes().max()))
    assert seconds > 0
    assert expectation(job, done=10) == []  # nothing is left to do


def test_a_net_that_fails_is_left_to_the_run_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Job) -> None:
        raise ValueError("of the user's own")

    monkeypatch.setattr(Job, "fresh_model", broken)
    assert expectation(make_job(), done=0) == []
