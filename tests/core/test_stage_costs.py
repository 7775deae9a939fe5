"""Bytes of the stages after the last round, counted by hand: in this process, in workers, over nodes, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedframe
from fedframe.core.remote_evaluation import SUMMED_COUNTS
from fedframe.core.server import Server
from fedframe.network.node_request import NodeRequest
from fedframe.runs.session import execute
from fedframe.util.files import read_json
from tests.helpers import Recorder, blobs, nothing
from tests.network.in_process import clock, make, remote_engine

__all__ = ["clock"]

# Four clients, three classes, five numbers into mlp:8. A tensor of the model takes whole lines of 16 numbers.
SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 8, "workers": 1, "progress": False, "model": "mlp:8"}
BODY = 4 * (48 + 16)  # 5 x 8 weights and 8 biases
HEAD = 4 * (32 + 16)  # 8 x 3 weights and 3 biases
FROZEN = 4 * 8 * 3  # class vectors that the server has set anew travel by themselves
COUNTS = 3 * 8  # hits, samples, diverged
TRIANGLE = 8 * 9 // 2
FFC = 8 * (TRIANGLE + 8 * 3)
CCVR = 8 * (3 + 3 * 8 + 3 * TRIANGLE)


def stages_of(method: str, out: Path, **settings: Any) -> dict[str, Any]:
    """What a run's summary says of its stages, without what depends on the clock."""
    result = fedframe.run(method, data=blobs(), partition="user", out=out, **{**SMALL, **settings})
    return without_seconds(result.summary)


def without_seconds(summary: dict[str, Any]) -> dict[str, Any]:
    assert all(stage["seconds"] >= 0 for stage in summary["stages"].values())
    return {
        name: {key: value for key, value in stage.items() if key != "seconds"}
        for name, stage in summary["stages"].items()
    }


@pytest.mark.slow
def test_ffc_sends_a_triangle_and_gets_the_backbone_and_the_new_classifier_reaches_every_client(tmp_path: Path) -> None:
    assert stages_of("spherefed", tmp_path / "run") == {
        "server_stage": {
            "bytes_up": 4 * FFC,
            "bytes_down": 4 * BODY,
            "bytes_by_part": {"ffc": {"up": 4 * FFC, "down": 0}, "backbone": {"up": 0, "down": 4 * BODY}},
        },
        "client_stage": {
            "bytes_up": 4 * COUNTS,
            "bytes_down": 4 * (BODY + FROZEN),
            "bytes_by_part": {
                "counts": {"up": 4 * COUNTS, "down": 0},
                "backbone": {"up": 0, "down": 4 * BODY},
                "head": {"up": 0, "down": 4 * FROZEN},
            },
        },
    }


@pytest.mark.slow
def test_totals_are_rounds_and_stages_and_the_rounds_alone_keep_their_keys(tmp_path: Path) -> None:
    summary = fedframe.run("spherefed", data=blobs(), partition="user", out=tmp_path / "run", **SMALL).summary
    assert summary["bytes_up"] == summary["bytes_down"] == 2 * 4 * BODY
    assert summary["bytes_once"] == 4 * FROZEN
    assert summary["bytes_up_total"] == 2 * 4 * BODY + 4 * FFC + 4 * COUNTS
    assert summary["bytes_down_total"] == 2 * 4 * BODY + 4 * FROZEN + 4 * BODY + 4 * (BODY + FROZEN)


@pytest.mark.slow
def test_ccvr_sends_counts_means_and_triangles(tmp_path: Path) -> None:
    found = stages_of("ccvr", tmp_path / "run")
    assert (found["server_stage"]["bytes_up"], found["server_stage"]["bytes_down"]) == (4 * CCVR, 4 * (BODY + HEAD))
    assert (found["client_stage"]["bytes_up"], found["client_stage"]["bytes_down"]) == (4 * COUNTS, 4 * (BODY + HEAD))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "stages"),
    [
        ("fedavg", {}, {"client_stage": 4 * (BODY + HEAD)}),
        ("fedavg", {"personal": False}, {}),
        ("fedavg", {"personal_clients": 3}, {"client_stage": 3 * (BODY + HEAD)}),
        ("fedavg+pooled_head", {"personal": False}, {"server_stage": 0}),  # it takes the data where they are
        ("local", {}, {"client_stage": 0}),  # nothing is shared
    ],
)
def test_a_stage_counts_for_the_clients_that_are_in_it(
    tmp_path: Path, method: str, settings: dict[str, Any], stages: dict[str, int]
) -> None:
    found = stages_of(method, tmp_path / "run", **settings)
    assert {name: stage["bytes_down"] for name, stage in found.items()} == stages


@pytest.mark.slow
def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    assert stages_of("spherefed", tmp_path / "one") == stages_of("spherefed", tmp_path / "two", workers=2)


@pytest.mark.slow
def test_a_run_that_was_stopped_after_its_last_round_counts_its_stages_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stages_of("spherefed", tmp_path / "whole")
    conclude = Server.conclude

    def stop_at_the_end(server: Server, progress: Any) -> Any:
        conclude(server, progress)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Server, "conclude", stop_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            stages_of("spherefed", tmp_path / "stopped")
    resumed = fedframe.resume(tmp_path / "stopped", data=blobs(), progress=False).summary
    assert without_seconds(resumed) == whole
    assert resumed["bytes_up_total"] == resumed["bytes_up"] + 4 * FFC + 4 * COUNTS


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_nodes_send_what_a_simulation_counts_and_masked_sums_two_numbers_more(tmp_path: Path, secure: bool) -> None:
    if secure:
        pytest.importorskip("cryptography")
    job, run = make("spherefed", tmp_path / "run", rounds=1, secure=secure)
    execute(job, run, Recorder(), lambda job, note: remote_engine(job, tmp_path / "nodes"))
    found = without_seconds(read_json(run.path / "summary.json"))
    local_job, local = make("spherefed", tmp_path / "local", rounds=1)
    execute(local_job, local, Recorder())
    wanted = without_seconds(read_json(local.path / "summary.json"))
    numbers = 32 * 33 // 2 + 32 * 10
    assert wanted["server_stage"]["bytes_up"] == 4 * 8 * numbers
    assert found["server_stage"]["bytes_up"] == 4 * 8 * (numbers + 2 * secure)  # the loss, and whether it diverged
    for stage, way in (("server_stage", "bytes_down"), ("client_stage", "bytes_down")):
        assert found[stage][way] == wanted[stage][way] > 0
    # The loss, whether it diverged, and the scores of the shared and of the own model.
    counts = 8 * (2 + 2 * len(SUMMED_COUNTS))
    assert found["client_stage"]["bytes_up"] == (4 * counts if secure else wanted["client_stage"]["bytes_up"]) > 0


def test_an_answer_of_statistics_may_be_far_larger_than_the_model(tmp_path: Path) -> None:
    job, _ = make("ccvr", tmp_path / "run", model="mlp:800")
    engine = remote_engine(job, tmp_path / "nodes", 1)
    server = Server(job, engine, nothing)
    engine.expect("statistics", job.expected("statistics"))
    asked = NodeRequest("run1", server.build_request("statistics", 1), {"statistics": [0, 1, 2, 3]})
    sent = 4 * 8 * (10 + 10 * 800 + 10 * 800 * 801 // 2)
    assert sent < engine.max_answer_bytes(asked) < 5 * sent
