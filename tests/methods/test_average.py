"""The mean of the last rounds' models against plain sums in float64; what it leaves alone, its limits, its company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedframe
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.average import Average
from fedframe.methods.parts.ffc import FFC
from fedframe.methods.parts.frame_head import Orthonormal
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings
from tests.helpers import blobs, nothing, same_file
from tests.methods.toy import job_of, trained

NORMED = "tests.models.normed:normed"
SMALL: dict[str, Any] = {"epochs": 1, "batch": 8, "workers": 1, "progress": False, "model": "mlp:8"}


def models_of(folder: Path, *parts: Any, rounds: int, **settings: Any) -> tuple[Server, list[Tensor]]:
    """A server after all of its rounds, and the shared model after each of them."""
    job = job_of(folder, *parts, rounds=rounds, **settings)
    server, found = Server(job, InlineEngine(job), nothing), []
    for round in range(1, rounds + 1):
        server.run_round(round, nothing)
        server.round = round
        found.append(server.model.clone())
    return server, found


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp:8", NORMED])
def test_final_model_is_the_mean_of_the_last_models_and_rounds_are_fedavgs(tmp_path: Path, model: str) -> None:
    plain, alone = models_of(tmp_path / "plain", rounds=6, model=model)
    server, found = models_of(tmp_path / "average", Average(share=0.5, fewest=1), rounds=6, model=model)
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))
    expected = [sum(float(vector[i]) for vector in alone[3:]) / 3 for i in range(len(alone[0]))]
    server.conclude(nothing)
    torch.testing.assert_close(server.model.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-9)
    buffers = slice(server.layout.trainable, server.layout.size)
    assert (server.layout.size > server.layout.trainable) == (model == NORMED)
    assert model != NORMED or not torch.equal(server.model[buffers], plain.model[buffers])


def test_mean_of_the_last_model_alone_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    server, found = models_of(tmp_path, Average(share=0.0, fewest=1), rounds=4)
    server.conclude(nothing)
    assert torch.equal(server.model, found[-1])


@pytest.mark.slow
@given(st.integers(1, 2000), st.floats(0, 1), st.integers(1, 50))
def test_averaged_rounds_are_the_last_ones_and_at_least_one(rounds: int, share: float, fewest: int) -> None:
    first = Average(share, fewest).first_round(rounds)
    assert 1 <= first <= rounds
    count = rounds + 1 - first
    assert count == rounds or count >= fewest
    assert abs(count - share * rounds) <= 0.5 or count in (fewest, rounds)


def test_default_is_the_last_fifth_and_at_least_five_rounds() -> None:
    assert {rounds: rounds + 1 - Average().first_round(rounds) for rounds in (3, 10, 30, 100)} == {
        3: 3,
        10: 5,
        30: 6,
        100: 20,
    }


def test_a_resume_among_the_averaged_rounds_changes_no_bit(tmp_path: Path) -> None:
    part = Average(share=0.0, fewest=3)
    whole = trained(job_of(tmp_path, part, rounds=4), 4)
    half = trained(job_of(tmp_path, part, rounds=4), 3)
    other = Server(half.job, InlineEngine(half.job), nothing)
    other.restore(half.tensors(), 3)
    other.run_round(4, nothing)
    other.round = 4
    for server in (whole, other):
        server.conclude(nothing)
    assert torch.equal(other.model, whole.model)


def test_server_stage_works_on_the_averaged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, found = models_of(tmp_path, Average(share=1.0), Orthonormal(), FFC(), rounds=3)
    seen: list[Tensor] = []
    ask = server.ask_everyone

    def watched(*given: Any) -> Any:
        seen.append(server.build_request("statistics", 4).tensors["model"].clone())
        return ask(*given)

    monkeypatch.setattr(server, "ask_everyone", watched)
    server.conclude(nothing)
    mean = torch.stack(found).double().mean(0)
    torch.testing.assert_close(seen[0].double(), mean, rtol=1e-7, atol=1e-9)
    assert torch.equal(server.model, seen[0])


@pytest.mark.slow
def test_a_run_scores_the_last_model_and_the_mean_and_sends_what_fedavg_sends(tmp_path: Path) -> None:
    plain, averaged = (
        fedframe.run(method, data=blobs(), partition="user", rounds=4, out=tmp_path / method, **SMALL)
        for method in ("fedavg", "fedavg+average")
    )
    assert plain.history[-1]["generic_loss"] == averaged.history[-1]["generic_loss"]
    assert not same_file(tmp_path / "fedavg" / "model.safetensors", tmp_path / "fedavg+average" / "model.safetensors")
    for key in ("bytes_up_total", "bytes_down_total"):
        assert plain.summary[key] == averaged.summary[key]


@pytest.mark.slow
def test_workers_and_a_stop_after_the_last_round_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, workers: int) -> None:
        given = {**SMALL, "workers": workers}
        fedframe.run("fedavg+average", data=blobs(), partition="user", rounds=4, out=tmp_path / name, **given)

    def stop(server: Server, progress: Any) -> Any:
        raise KeyboardInterrupt

    run("one", 1)
    run("two", 2)
    with monkeypatch.context() as patch:
        patch.setattr(Server, "conclude", stop)
        with pytest.raises(KeyboardInterrupt):
            run("stopped", 1)
    fedframe.resume(tmp_path / "stopped", data=blobs(), progress=False)
    for name in ("two", "stopped"):
        assert same_file(tmp_path / "one" / "model.safetensors", tmp_path / name / "model.safetensors")


def test_methods_without_a_shared_model_are_refused() -> None:
    with pytest.raises(SettingError, match="'average' needs a shared model that predicts"):
        make_method("fedper+average", {})
    with pytest.raises(SettingError, match="buffers = 'private'; use average"):
        Average().check_settings(Settings(buffers="private"))
