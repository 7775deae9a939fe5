"""Measures in rounds: they change nothing, survive a resume, and say what a plain loop says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedframe
from fedframe.core.evaluation import Scores
from fedframe.core.round_record import RoundRecord
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.metrics import local_models
from fedframe.metrics.local_models import LocalModels
from fedframe.metrics.observers import RoundMeasures
from fedframe.runs.folder import RunFolder
from fedframe.settings import Settings
from fedframe.util.files import read_tensors
from tests.helpers import Recorder, blobs, equal_states, images, make_job, nothing

METHODS = ["fedavg", "fedloge", "fedrane", "fedper", "fedproto", "scaffold", "local"]
SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 8, "lr": 0.05, "model": "mlp:16", "partition": "user"}
TIMES = ("seconds",)


def run(out: Path, method: str, **more: Any) -> RunFolder:
    data = more.pop("data", None) or blobs()
    settings = {**SMALL, "workers": 1, "progress": False, **more}
    return RunFolder(fedframe.run(method, data=data, out=out, **settings).folder)


def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def models(folder: RunFolder) -> dict[str, torch.Tensor]:
    found = dict(read_tensors(folder.path / "model.safetensors")[0])
    for path in sorted((folder.path / "personal").rglob("*.safetensors")):
        found |= {f"{path.stem}/{name}": tensor for name, tensor in read_tensors(path)[0].items()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_measuring_changes_no_bit_of_any_model_and_finite_figures_come_out(tmp_path: Path, method: str) -> None:
    plain, measured = run(tmp_path / "off", method), run(tmp_path / "on", method, measure="all")
    assert equal_states(models(plain), models(measured))
    off, on = plain.metrics(), measured.metrics()
    added = set(on[-1]) - set(off[-1])
    assert "local" not in on[0]
    assert 0 <= on[-1]["local"] <= 1  # of the last round's local models only
    added.remove("local")
    assert untimed([{key: line[key] for key in off[i]} for i, line in enumerate(on)]) == untimed(off)
    assert {"cka", "prototype_cosine", "classifier_cosine", "classifier_norm_difference"} <= added
    collapse = {"nc1", "nc2_norms", "nc2_angles", "nc3", "nc4"}
    assert (collapse <= added) == (method not in ("fedper", "fedproto", "local"))
    assert ("drift_cosine" in added) == (method not in ("fedproto", "local"))  # where something that learns is shared
    assert all(math.isfinite(line[key]) for line in on for key in added)
    assert not (plain.path / "drift.jsonl").exists()


@pytest.mark.slow
def test_measures_are_the_same_for_any_number_of_workers_and_after_a_resume(tmp_path: Path) -> None:
    more: dict[str, Any] = {"measure": "all", "rounds": 3, "data": blobs(clients=6), "participation": 0.7}
    whole = run(tmp_path / "whole", "fedper", **more)
    forked = run(tmp_path / "forked", "fedper", workers=2, **more)

    class Stop(Recorder):
        def round(self, record: RoundRecord) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", "fedper", **{**more, "progress": Stop()})
    cut = RunFolder(tmp_path / "cut")
    cut.append_metrics({"round": 3})
    cut.append_drift({"round": 3, "clients": []})  # as if the kill had come just before the checkpoint
    fedframe.resume(cut.path, data=more["data"], progress=False)
    for other in (forked, cut):
        assert equal_states(models(whole), models(other))
        assert untimed(other.metrics()) == untimed(whole.metrics())
        assert other.drift() == whole.drift()
    assert [line["round"] for line in whole.drift()] == [1, 2, 3]
    assert all(len(line["clients"]) == len(line["cosine"]) == 4 for line in whole.drift())


@pytest.mark.slow
def test_statistics_of_batch_norm_do_not_move(tmp_path: Path) -> None:
    more: dict[str, Any] = {"data": images(), "model": "resnet20", "partition": "iid", "clients": 2, "personal": False}
    folders = [run(tmp_path / name, "fedavg", measure=name, **{**more, "rounds": 1}) for name in ("", "all")]
    assert equal_states(*(models(folder) for folder in folders))


@pytest.mark.parametrize("method", ["fedavg", "fedrane", "fedadam"])
def test_cosines_are_with_the_step_that_the_server_took(tmp_path: Path, method: str) -> None:
    job = make_job(tmp_path, method=method, measure="drift", participation=1.0)
    engine = InlineEngine(job)
    measures = RoundMeasures(job, nothing)
    server = Server(job, engine, nothing, [measures])
    start = server.model.clone()
    order = server.build_request("train", 1)
    updates = {reply.unit: reply.tensors["update"].clone() for reply in engine.run(order, server.select_clients(1))}
    record = server.run_round(1, nothing)
    measures.end(server, record)
    end, trainable = job.roles.layout.trainable, job.roles.layout.trainable
    step = [float(a) - float(b) for a, b in zip(server.model[:end], start[:end], strict=True)]
    length = math.sqrt(sum(value * value for value in step))
    assert record.by_client["clients"] == [0, 1, 2, 3]
    for client, cosine, norm in zip(*(record.by_client[key] for key in ("clients", "cosine", "norm")), strict=True):
        update = [float(value) for value in updates[client][:trainable]]
        own = math.sqrt(sum(value * value for value in update))
        dot = sum(a * b for a, b in zip(update, step, strict=True))
        assert norm == pytest.approx(own, rel=1e-9)
        assert cosine == pytest.approx(dot / own / length, rel=1e-6, abs=1e-9)
    assert record.figures["step_norm"] == pytest.approx(length, rel=1e-9)
    assert record.figures["drift_cosine"] == pytest.approx(sum(record.by_client["cosine"]) / 4)


def test_classifiers_of_a_round_are_those_of_the_clients(tmp_path: Path) -> None:
    job = make_job(tmp_path, measure="drift")
    engine = InlineEngine(job)
    server = Server(job, engine, nothing, [measures := RoundMeasures(job, nothing)])
    start, order = server.model.clone(), server.build_request("train", 1)
    heads = [
        job.roles.layout.views(start + reply.tensors["update"])["head.weight"].double().clone()
        for reply in engine.run(order, range(4))
    ]
    record = server.run_round(1, nothing)
    measures.end(server, record)
    pairs = [(a, b, c) for a in range(4) for b in range(4) for c in range(3) if a != b]
    cosines = [float(heads[a][c] @ heads[b][c] / heads[a][c].norm() / heads[b][c].norm()) for a, b, c in pairs]
    lengths = [abs(float(heads[a][c].norm() - heads[b][c].norm())) for a, b, c in pairs]
    assert record.figures["classifier_cosine"] == pytest.approx(sum(cosines) / len(pairs), rel=1e-6)
    assert record.figures["classifier_norm_difference"] == pytest.approx(sum(lengths) / len(pairs), rel=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local", "fedloge"])
def test_local_models_are_what_training_left(tmp_path: Path, method: str) -> None:
    """Private tensors included; seen through what the model predicts, right after the client's own training."""
    job = make_job(tmp_path, None, "mlp:16", method=method)
    inputs = job.federation.source.batch(job.federation.source.train, torch.arange(7))
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    local = LocalModels(job)
    expected = {}
    for round in (1, 2):
        local.begin(server, [0, 1, 2, 3])
        for reply in engine.run(server.build_request("train", round), [2, 0]):
            local.on_reply(reply)
            with torch.no_grad():
                expected[reply.unit] = job.method.logits(engine.runtime.model.eval(), inputs)
    for client, model in local.each(2, local.clients()):
        with torch.no_grad():
            torch.testing.assert_close(job.method.logits(model, inputs), expected.pop(client), atol=1e-5, rtol=1e-4)
    assert expected == {}


def test_updates_that_do_not_fit_are_drawn_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path, blobs(clients=8), measure="drift")
    monkeypatch.setattr(local_models, "MOST_BYTES", 3 * 4 * job.roles.layout.size)
    notes: list[str] = []
    engine = InlineEngine(job)
    server = Server(job, engine, nothing, [measures := RoundMeasures(job, notes.append)])
    seen = []
    for round in (1, 2):
        record = server.run_round(round, nothing)
        assert len(measures.local.updates) == 3
        measures.end(server, record)
        assert not measures.local.updates  # freed until the next round
        seen.append(record.by_client["clients"])
    assert seen[0] == seen[1]
    assert len(notes) == 1
    assert "Drift is measured for 3 of the 8 clients of a round, a fixed draw" in notes[0]


def test_nobody_looks_on_unless_asked(tmp_path: Path) -> None:
    from fedframe.metrics.observers import observers

    assert observers(make_job(tmp_path), nothing) == []
    assert Settings(measure="drift, cka").measures == ("drift", "cka")
    assert Settings(measure="all").measures == ("collapse", "drift", "cka", "local")
    with pytest.raises(SettingError, match=r"measure = 'dirft': did you mean 'drift'"):
        Settings(measure="dirft")


@pytest.mark.slow
def test_rounds_that_are_not_evaluated_cost_no_features(tmp_path: Path) -> None:
    lines = run(tmp_path / "run", "fedavg", measure="all", rounds=3, eval_every=0).metrics()
    assert ["nc1" in line for line in lines] == [False, False, True]
    assert all("drift_cosine" in line for line in lines)


def test_net_that_diverged_gives_no_figures_and_ends_no_run(tmp_path: Path) -> None:
    job = make_job(tmp_path, measure="all")
    engine = InlineEngine(job)
    server = Server(job, engine, nothing, [measures := RoundMeasures(job, nothing)])
    record = server.run_round(1, nothing)
    record.figures["of a part"] = 1.0
    record.scores = Scores()
    server.model = torch.full_like(server.model, float("inf"))
    measures.local.updates = {k: torch.full_like(u, 1e38) for k, u in measures.local.updates.items()}
    measures.end(server, record)
    assert record.figures["of a part"] == 1
    assert all(math.isfinite(value) for value in record.figures.values())
    assert "nc1" not in record.figures


@pytest.mark.slow
def test_bytes_by_part_survive_a_resume_and_add_up(tmp_path: Path) -> None:
    class Stop(Recorder):
        def round(self, record: RoundRecord) -> None:
            if record.round == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", "scaffold+etf", progress=Stop())
    summary = fedframe.resume(tmp_path / "cut", data=blobs(), progress=False).summary
    assert set(summary["bytes_by_part"]) == {"backbone", "scaffold"}  # a frozen classifier does not travel
    for way in ("up", "down"):
        assert sum(part[way] for part in summary["bytes_by_part"].values()) == summary[f"bytes_{way}"]
