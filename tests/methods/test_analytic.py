"""The recipe `analytic`: alone and after rounds, from the command's settings to the model that predicts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

import fedframe
from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.jobs.gather import gather
from fedframe.methods.closed_form.head import closed_form
from fedframe.methods.closed_form.means_only import sums_from_means
from fedframe.methods.closed_form.ridge import fit_ridge, standardise
from fedframe.methods.closed_form.sums import Sums, stream_sums
from fedframe.methods.parts import analytic as module
from fedframe.methods.recipes import make_method
from fedframe.models.feature_maps import Raw, WhitenedPatches
from fedframe.network.step_bound import StepBound
from fedframe.runs import session
from fedframe.runs.folder import RunFolder
from fedframe.util.files import read_tensors
from tests.helpers import blobs, images, make_job, nothing, same_file
from tests.methods.closed_form.plain import pooled_ridge

ALONE: dict[str, Any] = {"method": "analytic", "model": "raw", "rounds": 0, "local_test": 0.0, "min_client_size": 1}


def concluded(job: Job, notes: list[str] | None = None) -> Server:
    server = Server(job, InlineEngine(job), nothing if notes is None else notes.append)
    server.conclude(nothing)
    return server


def split(data: dict[str, Any], owner: Any) -> dict[str, Any]:
    return {**data, "user_train": np.asarray(owner)}


def logits(server: Server) -> Tensor:
    source = server.job.federation.source
    assert source.test is not None
    inputs = source.batch(source.test, torch.arange(len(source.test)))
    with torch.no_grad():
        return server.job.method.logits(server.net(), inputs)


# -- the recipe --------------------------------------------------------------------------------------------------------
def test_alone_it_has_no_rounds_and_no_net_and_after_a_method_it_has_that_methods() -> None:
    alone, after = gather({"method": "analytic"}, None), gather({"method": "fedetf+analytic"}, None)
    assert (alone.rounds, alone.model) == (0, "raw")
    assert (after.rounds, after.model, after.lr) == (30, "auto", 0.04)
    assert {"frozen", "analytic"} <= {part.name for part in make_method("analytic", {}).parts}


@pytest.mark.parametrize(
    ("method", "gone"),
    [("spherefed+analytic", "ffc"), ("fedetf+analytic", "fedetf_stage"), ("fedavg+analytic", "fine_tune")],
)
def test_it_takes_the_place_of_other_server_and_client_stages(method: str, gone: str) -> None:
    made = make_method(method, {})
    assert gone not in {part.name for part in made.parts}
    assert made.slot("server_stage").name == made.slot("client_stage").name == "analytic"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "fedloge+analytic"}, "both claim the predict slot"),
        ({"method": "fedper+analytic"}, "leave one of them out"),
        ({"method": "frozen"}, "would learn nothing"),
        ({"method": "fedbn+analytic"}, "leave one of them out|use average"),
        ({"method": "analytic", "set": {"analytic": {"width": -1}}}, "analytic.width = -1"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        fedframe.run(data=blobs(), out=tmp_path / "run", progress=False, **settings)


def test_more_features_than_the_machine_has_memory_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, **ALONE)
    dim = closed_form(job.template).features.dim
    monkeypatch.setattr(module, "memory_needed", lambda _: 4 * psutil.virtual_memory().total)
    with pytest.raises(SettingError, match=rf"{dim:,} features take .* GB .*use analytic.width=512\."):
        concluded(job)


def test_rounds_in_which_nothing_could_learn_are_left_out_with_a_note(tmp_path: Path) -> None:
    job = make_job(tmp_path, method="analytic", model="raw", rounds=3)
    assert job.settings.rounds == 0
    assert "rounds = 3 is left out" in job.federation.notes[-1]


@pytest.mark.slow
def test_a_new_run_has_a_fixed_map_and_one_of_before_keeps_that_of_the_data(tmp_path: Path) -> None:
    for method in ("analytic", "fedavg+analytic"):
        assert gather({"method": method}, None).set == {"analytic": {"map": "fixed"}}
    assert gather({"method": "analytic", "set": {"map": "data"}}, None).set == {"analytic": {"map": "data"}}
    assert gather({"method": "fedavg"}, None).set == {}
    part = make_method("analytic", {}).slot("server_stage")
    assert isinstance(part, module.Analytic)
    assert part.map == "data"
    run = fedframe.run("analytic", data=blobs(), partition="user", workers=1, out=tmp_path / "run", progress=False)
    assert RunFolder.open(run.folder).settings().set == {"analytic": {"map": "fixed"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, [{"v", "u"}]),
        ({"map": "data"}, [{"counts", "map"}, {"v", "u"}]),
        ({"balance": 0.5}, [{"counts", "map"}, {"v", "u"}]),
        ({"map": "data", "width": 0}, [{"v", "u"}]),
    ],
)
def test_a_client_sends_one_message_unless_map_or_weights_need_one_before(
    tmp_path: Path, settings: dict[str, Any], names: list[set[str]]
) -> None:
    job = make_job(tmp_path, **ALONE, set={"analytic": settings})
    sent = [{name.removeprefix("analytic/") for name in job.declared("statistics", k)} for k in range(job.stages)]
    assert sent == names
    server = concluded(job)
    assert closed_form(server.net()).counts.tolist() == server.job.federation.source.train.y.bincount().tolist()


@pytest.mark.slow
def test_a_fixed_map_is_the_same_without_a_client_and_one_of_the_data_is_not(tmp_path: Path) -> None:
    data = images(count=96)
    rest = {name: value if "test" in name else value[24:] for name, value in data.items()}
    for knows in ("fixed", "data"):
        weights = []
        for name, samples, owner in (("all", data, np.arange(96) // 24), ("less", rest, np.arange(72) // 24)):
            job = make_job(tmp_path / knows / name, split(samples, owner), **ALONE, set={"analytic": {"map": knows}})
            features = closed_form(concluded(job).net()).features
            assert isinstance(features, WhitenedPatches)
            weights.append(features.weight.clone())
        assert torch.equal(*weights) == (knows == "fixed")


# -- the same model on any partition -----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("knows", ["fixed", "data"])
@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_any_partition_gives_the_same_scores(tmp_path: Path, kind: str, knows: str) -> None:
    data = blobs() if kind == "vectors" else images(count=96)
    owners = [
        np.arange(96) // 24,
        np.arange(96) % 4,
        data["y_train"],
        (np.arange(96) > 0).astype(int),
        np.zeros(96, int),
    ]
    settings = {**ALONE, "set": {"analytic": {"map": knows}}}
    found = [logits(concluded(make_job(tmp_path / str(i), split(data, o), **settings))) for i, o in enumerate(owners)]
    for other in found[1:]:
        torch.testing.assert_close(other.exp(), found[0].exp(), rtol=0, atol=1e-3)  # ten features per sample
        assert torch.equal(other.argmax(1), found[0].argmax(1))


def test_the_classifier_is_ridge_regression_on_the_pooled_features(tmp_path: Path) -> None:
    settings = {**ALONE, "set": {"analytic": {"width": 0, "ridge": 0.05}}}
    server = concluded(make_job(tmp_path, **settings))
    job = server.job
    source, rows = job.federation.source, job.federation.train.values
    features, labels = source.batch(source.train, rows), source.train.y[rows]
    weight, bias = pooled_ridge(features, labels, 3, 0.05)
    head = closed_form(server.net())
    found = torch.nn.functional.linear(head.standardised(features), head.weight, head.bias).double()
    wanted = features.double() @ torch.from_numpy(weight).T + torch.from_numpy(bias)
    assert float((found - wanted).abs().max()) < 1e-5


def test_a_run_without_a_client_is_the_whole_run_with_its_sums_taken_out(tmp_path: Path) -> None:
    """With the map of the whole run: what is kept in the folder suffices to forget a client."""
    settings = {**ALONE, "set": {"analytic": {"width": 0}}}
    whole, data = make_job(tmp_path / "whole", **settings), blobs()
    server = concluded(whole)
    total = Sums.zeros(5, 3)
    for client in range(4):
        kept, _ = read_tensors(tmp_path / "whole" / "sums" / f"{client:06d}-0.safetensors")
        total.add_(Sums(kept["analytic/v"], kept["analytic/u"]))
    gone, _ = read_tensors(tmp_path / "whole" / "sums" / "000002-0.safetensors")
    total.add_(Sums(gone["analytic/v"], gone["analytic/u"]), times=-1)
    source, rest = whole.federation.source, torch.from_numpy(np.flatnonzero(data["user_train"] != 2))
    batch = source.batch(source.train, rest)
    wanted = stream_sums([(batch.double(), source.train.y[rest])], 5, 3)
    torch.testing.assert_close(total.second, wanted.second, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(total.cross, wanted.cross, rtol=1e-6, atol=1e-4)
    assert server.stage == 0


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "kept"), [(None, True), (True, True), (False, False)])
def test_single_clients_sums_are_kept_unless_not_wanted(tmp_path: Path, keep: bool | None, kept: bool) -> None:
    concluded(make_job(tmp_path, **ALONE, set={"analytic": {"keep_sums": keep}}))
    assert (tmp_path / "sums").exists() == kept


@pytest.mark.parametrize("width", [40, 2000])
def test_what_is_kept_without_being_asked_for_has_at_most_the_bytes_that_are_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """In float64 where features are few and in float32 where they are many: the files say how much it is."""
    settings: dict[str, Any] = {**ALONE, "set": {"analytic": {"width": width, "map": "data"}}}
    job = make_job(tmp_path / "run", **settings)
    concluded(job)
    tensors = [read_tensors(path)[0] for path in (tmp_path / "run" / "sums").iterdir()]
    size = sum(tensor.nbytes for each in tensors for tensor in each.values())
    part = job.method.slot("server_stage")
    assert isinstance(part, module.Analytic)
    for most, kept in ((size, True), (size - 1, False)):
        monkeypatch.setattr(module, "MOST_KEPT", most)
        assert part.keeps_sums(Server(job, InlineEngine(job), nothing)) == kept


# -- unusual clients and classes ---------------------------------------------------------------------------------------
@pytest.mark.slow
def test_one_client_with_one_sample_and_a_class_that_nobody_has(tmp_path: Path) -> None:
    data = blobs()
    one = {name: data[name][:1] for name in ("x_train", "y_train", "user_train")}
    server = concluded(make_job(tmp_path, {**data, **one}, **ALONE))
    assert bool(logits(server).isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["none", "normalised", "equal_priors"])
@pytest.mark.parametrize("balance", [0.0, 1.0])
def test_every_way_of_treating_rare_classes_learns(tmp_path: Path, tail: str, balance: float) -> None:
    data = blobs()
    few = np.flatnonzero(data["y_train"] == 0)[6:]
    data = {name: value if "test" in name else np.delete(value, few, axis=0) for name, value in data.items()}
    server = concluded(make_job(tmp_path, data, **ALONE, set={"analytic": {"tail": tail, "balance": balance}}))
    labels = torch.from_numpy(data["y_test"])
    assert float((logits(server).argmax(1) == labels).double().mean()) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["normalised", "equal_priors"])
def test_personal_models_beside_a_classifier_for_rare_classes_are_those_without_it(tmp_path: Path, tail: str) -> None:
    found = {}
    for name in ("none", tail):
        settings: dict[str, Any] = {"data": blobs(), "partition": "user", "workers": 1, "progress": False}
        fedframe.run("analytic", out=tmp_path / name, set={"analytic": {"tail": name}}, **settings)
        found[name] = fedframe.Predictor.load(tmp_path / name, client=1).probabilities(blobs()["x_test"])
    assert torch.equal(found["none"], found[tail])


# -- class means only --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_with_class_means_only_the_message_is_short_and_the_model_that_of_the_estimate(tmp_path: Path) -> None:
    data = blobs(clients=24, each=12)
    settings = {**ALONE, "set": {"analytic": {"send": "means", "width": 0, "ridge": 0.05}}}
    job = make_job(tmp_path, data, **settings)
    assert {*job.declared("statistics", 0)} == {"analytic/u"}
    server = concluded(job)
    source = job.federation.source
    counts, means = torch.zeros(24, 3).double(), torch.zeros(24, 3, 5).double()
    for client in range(24):
        rows = job.federation.train[client]
        batch, labels = source.batch(source.train, rows).double(), source.train.y[rows]
        for c in labels.unique().tolist():  # type: ignore[no-untyped-call]
            counts[client, c], means[client, c] = (labels == c).sum(), batch[labels == c].mean(0)
    problem = standardise(sums_from_means(counts, means))
    wanted = fit_ridge(problem, 0.05).coefficients
    torch.testing.assert_close(closed_form(server.net()).weight.double(), wanted.T, rtol=1e-4, atol=1e-5)
    found = logits(server).argmax(1).numpy()
    assert np.mean(found == data["y_test"]) > 0.9


def test_class_means_only_cannot_be_summed_and_are_refused_where_only_sums_are_seen(tmp_path: Path) -> None:
    job = make_job(tmp_path, **ALONE, set={"analytic": {"send": "means"}})
    assert {upload.aggregate for upload in job.uploads.values()} == {"each"}
    with pytest.raises(SettingError, match="use sums"):
        make_job(tmp_path, **ALONE, set={"analytic": {"send": "means", "balance": 0.5}})


# -- after rounds ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedavg+analytic", "fedetf+analytic", "spherefed+analytic", "scaffold+etf+analytic"]
)
@pytest.mark.parametrize("width", [None, 50])
def test_after_rounds_it_replaces_the_classifier_and_leaves_the_rounds_alone(
    tmp_path: Path, method: str, width: int | None
) -> None:
    with_rounds = make_job(tmp_path / "with", method=method, set={"analytic": {"width": width}})
    without = make_job(tmp_path / "without", method=method.removesuffix("+analytic"))
    servers = [Server(job, InlineEngine(job), nothing) for job in (with_rounds, without)]
    for server in servers:
        server.train(nothing, nothing)
    assert torch.equal(servers[0].model, servers[1].model)
    assert servers[0].last_scores == servers[1].last_scores
    final = servers[0].conclude(nothing)
    assert final.generic is not None
    assert final.generic > 0.85
    assert closed_form(servers[0].net()).features.dim == with_rounds.template.dim + (width or 0)


def test_what_it_asks_after_rounds_has_nothing_that_nodes_would_refuse(tmp_path: Path) -> None:
    job = make_job(tmp_path, method="fedavg+analytic", rounds=1, set={"analytic": {"width": 50, "map": "fixed"}})
    server = Server(job, InlineEngine(job), nothing)
    server.train(nothing, nothing)
    asked = server.build_request("statistics", 2)
    job.method.slot("server_stage").server_stage(server, [])
    again = server.build_request("statistics", 2)
    longest = {"update": float(asked.tensors["model"].norm()), "model": 1.0}
    StepBound(job).check(again, longest)
    assert asked.tensors.keys() == again.tensors.keys()


# -- the whole of a run ------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_runs_are_equal_for_any_number_of_workers_and_predict_and_personalise(tmp_path: Path) -> None:
    data = blobs()
    runs = [
        fedframe.run(
            "analytic", data=data, partition="user", workers=workers, out=tmp_path / str(workers), progress=False
        )
        for workers in (1, 2)
    ]
    assert same_file(tmp_path / "1" / "model.safetensors", tmp_path / "2" / "model.safetensors")
    for client in range(4):
        name = Path("personal", "000", f"{client:06d}.safetensors")
        assert same_file(tmp_path / "1" / name, tmp_path / "2" / name)
    found = [int(label) for label in runs[0].model.predict(data["x_test"])]
    assert np.mean(np.array(found) == data["y_test"]) == pytest.approx(runs[0].scores["generic"]["final"])
    newcomer = fedframe.personalise(
        tmp_path / "1", {"x_train": data["x_test"], "y_train": data["y_test"]}, progress=False
    )
    assert newcomer.scores["personal"] is not None
    assert len(newcomer.model.predict(data["x_test"][:3])) == 3


def test_the_memory_of_solving_for_the_classifier_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens after the last client, and is over before a look at the memory that the process then has."""
    marks = iter([100 << 30, 300 << 30])
    monkeypatch.setattr(session, "highest_memory_bytes", lambda: next(marks))
    run = fedframe.run("analytic", data=blobs(), personal=False, workers=1, out=tmp_path / "run", progress=False)
    assert run.summary["peak_memory_mb"] == 300 << 10


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs()
    fedframe.run("analytic", data=data, partition="user", workers=1, out=tmp_path / "whole", progress=False)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "standardise", stop)
        with pytest.raises(KeyboardInterrupt):
            fedframe.run("analytic", data=data, partition="user", workers=1, out=tmp_path / "cut", progress=False)
    fedframe.resume(tmp_path / "cut", data=data, progress=False)
    assert same_file(tmp_path / "whole" / "model.safetensors", tmp_path / "cut" / "model.safetensors")


@pytest.mark.slow
def test_personal_models_differ_only_in_their_classifier(tmp_path: Path) -> None:
    fedframe.run("analytic", data=blobs(), partition="user", workers=1, out=tmp_path / "run", progress=False)
    tensors, _ = read_tensors(tmp_path / "run" / "personal" / "000" / "000000.safetensors")
    names = {f"extras.analytic.{name}" for name in ("weight", "bias", "sharpness", "shift")}
    assert set(tensors) <= names
    assert tensors
    assert all(math.isfinite(float(tensor.sum())) for tensor in tensors.values())


def test_without_usable_sums_the_model_stays_as_it_is(tmp_path: Path) -> None:
    job, notes = make_job(tmp_path, method="fedavg+analytic"), list[str]()
    server = Server(job, InlineEngine(job), notes.append)
    server.stage = 1
    job.method.slot("server_stage").server_stage(server, [])
    assert "no client's sums could be used" in notes[0]
    assert not server.fixed_overrides


@pytest.mark.slow
def test_a_frozen_net_is_not_changed(tmp_path: Path) -> None:
    job = make_job(tmp_path, method="analytic", rounds=0, model="mlp:16")
    assert job.parameters == 0
    before = {name: tensor.clone() for name, tensor in job.template.backbone.state_dict().items()}
    server = concluded(job)
    assert not isinstance(job.template.backbone, Raw)
    for name, tensor in server.net().backbone.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert server.last_scores is None
