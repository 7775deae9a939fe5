"""Pooled measures in a federation: nodes send histograms of scores, the organiser sees no single prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")

from fedframe.core.job import Job
from fedframe.network.engine import NetworkEngine
from fedframe.network.envelope import decode_envelope
from fedframe.runs.folder import RunFolder
from fedframe.runs.session import execute
from fedframe.util.files import read_json
from tests.helpers import Recorder
from tests.network.flawed_answers import tensors_changed
from tests.network.in_process import clock, make, remote_engine

__all__ = ["clock"]


def run_at_nodes(folder: Path, spoil: Any = None, **settings: Any) -> tuple[RunFolder, Recorder]:
    job, run = make("fedavg", folder / "run", rounds=2, epochs=1, **settings)
    seen = Recorder()

    def engine(job: Job, note: Any) -> NetworkEngine:
        made = remote_engine(job, folder / "nodes", spoil=spoil)
        made.notify = note
        return made

    execute(job, run, seen, engine)
    return run, seen


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_pooled_measures_of_nodes_are_those_of_the_same_run_on_one_machine(tmp_path: Path, secure: bool) -> None:
    job, here = make("fedavg", tmp_path / "here", rounds=2, epochs=1)
    execute(job, here, Recorder())
    there, _ = run_at_nodes(tmp_path / "there", secure=secure)
    exact, binned = (read_json(run.path / "summary.json")["measures"] for run in (here, there))
    for score in ("client", "personal"):
        assert binned[score]["samples"] == exact[score]["samples"] > 20
        for metric in ("accuracy", "balanced_accuracy", "f1"):
            assert binned[score][metric]["value"] == pytest.approx(exact[score][metric]["value"], abs=1e-9)
        assert abs(binned[score]["auroc"]["value"] - exact[score]["auroc"]["value"]) < 0.001
        assert 0 <= binned[score]["auroc_bins_error"] < 0.05
        assert binned[score]["brier"]["value"] == pytest.approx(exact[score]["brier"]["value"], abs=1e-4)


@pytest.mark.slow
def test_the_metric_of_each_client_is_the_same_at_nodes_and_here(tmp_path: Path) -> None:
    job, here = make("fedavg", tmp_path / "here", rounds=2, epochs=1, metric="auroc")
    execute(job, here, Recorder())
    there, _ = run_at_nodes(tmp_path / "there", metric="auroc")
    first, second = (read_json(run.path / "summary.json")["scores"] for run in (here, there))
    for score in ("generic", "client", "personal"):
        for key in ("final", "low", "high", "samples", "last"):
            assert first[score][key] == pytest.approx(second[score][key], abs=1e-9), (score, key)
    lines = [[line["client"] for line in run.metrics()] for run in (here, there)]
    assert lines[0] == pytest.approx(lines[1], abs=1e-9)


@pytest.mark.slow
def test_with_secure_aggregation_no_histogram_of_one_client_is_seen(tmp_path: Path) -> None:
    kinds: dict[str, set[str]] = {}

    def spoil(node: str, content: bytes) -> bytes:
        for reply in decode_envelope(content)[0]:
            kinds.setdefault(reply.kind, set()).update(reply.tensors)
        return content

    run_at_nodes(tmp_path, spoil, secure=True)
    assert kinds["measure"] == kinds["personalise"] == {"masked", "shares"}  # scores are sums, too
    assert "client" not in kinds
    assert kinds["end"] == set()


@pytest.mark.slow
def test_no_histogram_leaves_a_node_that_is_told_to_send_none(tmp_path: Path) -> None:
    kinds: set[str] = set()

    def spoil(node: str, content: bytes) -> bytes:
        kinds.update(reply.kind for reply in decode_envelope(content)[0])
        return content

    run, _ = run_at_nodes(tmp_path, spoil, score_bins=0)
    assert "measure" not in kinds
    summary = read_json(run.path / "summary.json")
    assert set(summary["measures"]) == {"generic"}
    assert summary["scores"]["client"]["low"] is not None


@pytest.mark.slow
def test_histograms_that_count_too_much_are_refused_and_the_others_are_used(tmp_path: Path) -> None:
    def spoil(node: str, content: bytes) -> bytes:
        replies, _ = decode_envelope(content)
        if node != "node0" or any(reply.kind != "measure" for reply in replies):
            return content
        return tensors_changed(content, lambda tensors: {name: 7 * tensor for name, tensor in tensors.items()})

    fine, _ = run_at_nodes(tmp_path / "fine")
    run, seen = run_at_nodes(tmp_path / "spoilt", spoil)
    samples = [read_json(each.path / "summary.json")["measures"]["client"]["samples"] for each in (fine, run)]
    assert 0 < samples[1] < samples[0]
    assert any("score histograms" in note and "refused" in note for note in seen.notes)


def test_a_node_that_has_made_own_models_and_starts_anew_still_counts_them(tmp_path: Path) -> None:
    from fedframe.core.client_runtime import ClientRuntime
    from fedframe.core.server import Server
    from fedframe.engines.inline import InlineEngine

    job, _ = make("fedavg", tmp_path / "run", rounds=1, epochs=1)
    server = Server(job, InlineEngine(job))
    request = server.build_request("personalise", 2)
    first = ClientRuntime(job)
    first.perform(request, 1)
    measure = server.build_request("measure", 2)
    before, after = (runtime.perform(measure, 1).tensors for runtime in (first, ClientRuntime(job)))
    assert torch.equal(before["tally/personal"], after["tally/personal"])
    assert float(before["tally/personal"].sum()) > 0


def test_imbalance_at_the_nodes_is_said_once_their_sums_are_there(tmp_path: Path) -> None:
    from fedframe.core.evaluation import Scores
    from fedframe.core.measures import Predictions
    from fedframe.runs.session import warn_of_imbalance

    class AtNodes:
        notes: list[str] = []  # noqa: RUF012

        def __init__(self) -> None:
            from dataclasses import replace

            from fedframe.data.spec import DataSchema
            from fedframe.network.node_data import federation_without_data

            job, _ = make("fedavg", tmp_path / "run")
            source = job.federation.source
            form = DataSchema(source.classes, (8, 8, 1), None, source.mean, source.std)
            self.job = replace(job, federation=federation_without_data(form, ["a", "b"], [5, 5], [9, 9], None))

        def note(self, text: str) -> None:
            self.notes.append(text)

    labels = torch.tensor([3] * 19 + [1])
    pooled = Predictions(torch.eye(10)[labels], labels)
    warn_of_imbalance(AtNodes(), Scores(pooled={"client": pooled}))  # type: ignore[arg-type]
    assert "the majority class alone would score 95.0 %" in AtNodes.notes[0]
