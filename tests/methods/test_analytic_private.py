"""`analytic` under differential privacy: one release, of clients' means or of samples' sums."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedframe
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.privacy import epsilon
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.closed_form.head import ClosedFormHead, closed_form
from fedframe.methods.closed_form.private import bounded, to_release
from fedframe.methods.closed_form.sums import Sums, stream_sums
from tests.helpers import blobs, make_job, nothing

pytest.importorskip("dp_accounting")

PRIVATE: dict[str, Any] = {
    "method": "analytic",
    "model": "raw",
    "rounds": 0,
    "local_test": 0.0,
    "weighting": "uniform",
    "privacy_clip": 1.0,
    "privacy_noise": 0.5,
}


def private_job(folder: Path, protect: str = "client", **more: Any) -> Any:
    return make_job(folder, **PRIVATE | more, set={"analytic": {"protect": protect, "width": 7}})


def sent(job: Any, client: int = 1) -> torch.Tensor:
    """What a client's message holds, as a release."""
    server = Server(job, InlineEngine(job), nothing)
    found: list[torch.Tensor] = []

    def look(replies: Any) -> Any:
        yield from ()
        request = server.build_request("statistics", 1)
        reply = ClientRuntime(job).perform(request, client)
        found.append(to_release(Sums(reply.tensors["analytic/v"], reply.tensors["analytic/u"])))

    job.method.slot("server_stage").server_stage(server, look(()))
    return found[0]


def plain_release(job: Any, client: int, protect: str) -> torch.Tensor:
    """The same without noise, from the features of the client's samples."""
    server = Server(job, InlineEngine(job), nothing)
    server.conclude(nothing)
    head, source, rows = closed_form(server.net()), job.federation.source, job.federation.train[client]
    with torch.no_grad():
        features = bounded((head.features(source.batch(source.train, rows)) - head.features.usual()) * 2.0)
    sums = stream_sums([(features, source.train.y[rows])], head.features.dim, 3)
    return to_release(sums) / (len(rows) if protect == "client" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("protect", ["client", "sample"])
def test_a_client_sends_sums_of_bounded_features_or_their_mean(tmp_path: Path, protect: str) -> None:
    job = private_job(tmp_path / "a", protect)
    found = sent(job)
    torch.testing.assert_close(found, plain_release(job, 1, protect), rtol=1e-5, atol=1e-6)
    assert float(found.norm()) <= (1 if protect == "client" else len(job.federation.train[1])) * (1 + 1e-6)


def test_a_sample_that_gives_no_number_counts_as_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is the release spoilt nor does it tell: it is that of a sample whose features are 0."""
    found = []
    for number in (0.0, math.nan, math.inf):

        def features(head: ClosedFormHead, inputs: torch.Tensor, number: float = number) -> torch.Tensor:
            made = torch.ones(len(inputs), head.features.dim) / head.features.dim
            made[0] = number
            return made

        with monkeypatch.context() as patch:
            patch.setattr(ClosedFormHead, "standardised", features)
            found.append(sent(private_job(tmp_path / str(number), "sample")))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.slow
def test_noise_at_the_node_is_in_its_message_and_the_same_if_it_is_asked_twice(tmp_path: Path) -> None:
    job = private_job(tmp_path / "a", privacy_at="node")
    found = sent(job)
    assert torch.equal(found, sent(job))
    difference = found - plain_release(private_job(tmp_path / "b"), 1, "client")
    assert float(difference.std()) == pytest.approx(0.5, rel=0.2)
    assert float((sent(job, 2) - found).std()) > 0.5


@pytest.mark.slow
def test_noise_at_the_server_is_not_that_of_the_seed_and_hides_no_signal_if_it_is_small(tmp_path: Path) -> None:
    weights, scores = [], []
    for i in range(2):
        job = private_job(tmp_path / str(i), "sample", privacy_noise=0.05)
        server = Server(job, InlineEngine(job), nothing)
        scores.append(server.conclude(nothing).generic)
        weights.append(closed_form(server.net()).weight.clone())
        assert not (tmp_path / str(i) / "sums").exists()
    assert not torch.equal(*weights)
    assert all(score is not None and score > 0.9 for score in scores)


@pytest.mark.slow
@pytest.mark.parametrize(("protect", "hidden"), [("client", "clients"), ("sample", "samples")])
def test_the_summary_says_what_one_release_spends_and_hides(tmp_path: Path, protect: str, hidden: str) -> None:
    run = fedframe.run(
        data=blobs(), out=tmp_path / "run", progress=False, **PRIVATE, set={"analytic": {"protect": protect}}
    )
    spent = run.summary["privacy"]
    assert spent["epsilon"] == pytest.approx(epsilon(0.5, 1e-5, 1, 4, 4, False))
    assert spent["protects"] == hidden
    assert len(fedframe.Predictor.load(tmp_path / "run").predict(blobs()["x_test"])) == 60


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"set": {"analytic": {"map": "data"}}}, "use analytic.map=fixed"),
        ({"set": {"analytic": {"balance": 1.0}}}, "leave it out with privacy_clip"),
        ({"set": {"analytic": {"tail": "normalised"}}}, "leave it out with privacy_clip"),
        ({"set": {"analytic": {"keep_sums": True}}}, "analytic.keep_sums=false"),
        ({"method": "fedavg+analytic", "rounds": 2, "model": "mlp:8"}, "with rounds = 0"),
    ],
)
def test_what_would_not_be_private_is_refused(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_job(tmp_path, **PRIVATE | settings)
