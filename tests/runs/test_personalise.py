"""Personal models for clients that were not in the training, from a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedframe
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import personal_path
from fedframe.data import load_source
from fedframe.errors import DataError, SettingError
from fedframe.methods.parts.fedloge import PHI, PSI
from fedframe.runs.folder import RunFolder
from fedframe.util.files import read_json, read_tensors
from tests.cli.test_cli import fedframe as command
from tests.helpers import blobs, equal_states
from tests.runs.personalising import RECIPES, SMALL, runs, split_digits, write_table

__all__ = ["runs"]


@pytest.mark.slow
@pytest.mark.parametrize("method", RECIPES)
def test_new_client_gets_a_model_that_is_better_for_it(runs: Path, method: str) -> None:
    _, north = split_digits()
    result = fedframe.resume(runs / method, progress=False)
    new = result.personalise(f"npz:{runs / 'north.npz'}", name="better", progress=False)
    assert new.scores["client"] is not None
    assert new.scores["personal"] is not None
    assert new.scores["personal"] >= max(0.85, new.scores["client"])
    assert new.model.predict(north["x"][:20]) == result.personal("better").predict(north["x"][:20])
    right = np.array(new.model.predict(north["x"])) == north["y"].astype(str)
    assert right.mean() > 0.85


def test_scores_are_those_of_the_saved_models_on_samples_that_were_held_out(runs: Path) -> None:
    """With the test samples given apart, anyone can count."""
    _, north = split_digits()
    four = (north["x"][:200], north["y"][:200], north["x"][200:], north["y"][200:])
    new = fedframe.personalise(runs / "fedavg", four, name="counted", progress=False)
    assert new.summary["samples"] == {"training": 200, "test": len(four[3])}
    shared = fedframe.Predictor.load(runs / "fedavg")
    for score, model in (("client", shared), ("personal", new.model)):
        assert new.scores[score] == pytest.approx(np.mean(np.array(model.predict(four[2])) == four[3].astype(str)))
    assert read_json(runs / "fedavg" / "personal" / "joined" / "counted.json") == new.summary
    assert set(new.scores) <= set(new.summary["definitions"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "spherefed", "scaffold", "fedavg+frozen_random", "fedetf"])
def test_with_a_clients_own_rows_it_gives_that_clients_own_model(tmp_path: Path, method: str) -> None:
    """Same data, same random stream, nothing that rounds would have left: the same bits as at the end of the run."""
    data = blobs()
    out = tmp_path / "run"
    fedframe.run(method, data=data, model="mlp:8", rounds=2, local_test=0.0, out=out, **SMALL)
    mine = data["user_train"] == 0
    fedframe.personalise(out, (data["x_train"][mine], data["y_train"][mine]), name="again", progress=False)
    first = read_tensors(personal_path(out, 0))[0]
    again = read_tensors(RunFolder(out).joined_path("again"))[0]
    if method == "fedetf":  # clients of a run train their heads in groups, which rounds otherwise
        torch.testing.assert_close(first, again, atol=1e-4, rtol=1e-4)
    else:
        assert equal_states(first, again)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedloge"])
def test_same_run_data_and_seed_give_the_same_bits_whatever_the_name(runs: Path, method: str) -> None:
    data = f"npz:{runs / 'north.npz'}"
    names = {"one": None, "two": None, "three": 7}
    for name, seed in names.items():
        fedframe.personalise(runs / method, data, name=name, seed=seed, progress=False)
        torch.manual_seed(99)  # what else happens in the process does not matter
    states = [read_tensors(RunFolder(runs / method).joined_path(name))[0] for name in names]
    assert equal_states(states[0], states[1])
    assert not equal_states(states[0], states[2])


def test_only_what_differs_from_the_shared_model_is_kept(runs: Path) -> None:
    new = fedframe.personalise(
        runs / "fedavg", f"npz:{runs / 'north.npz'}", name="head", set={"fine_tune": {"what": "head"}}, progress=False
    )
    own, _ = read_tensors(RunFolder(runs / "fedavg").joined_path("head"))
    assert set(own) == {"head.weight", "head.bias"}
    assert new.summary["stage"]["fine_tune"]["what"] == "head"


def test_the_run_itself_stays_as_it_was(runs: Path) -> None:
    folder = runs / "scaffold"
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and "joined" not in p.parts}
    fedframe.personalise(folder, f"npz:{runs / 'north.npz'}", name="guest", progress=False)
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and "joined" not in p.parts}


# -- what rounds would have left with a client -----------------------------------------------------------------------
@pytest.mark.slow
def test_private_head_of_a_new_client_is_trained_before_it_is_used(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms of its class vectors are all that LA-FR takes from it: untrained, they say nothing."""
    given: dict[str, Any] = {"data": f"npz:{runs / 'north.npz'}", "name": "caught", "set": {"la_fr": {"epochs": 0}}}
    new = fedframe.personalise(runs / "fedloge", **given, progress=False)
    path = RunFolder(runs / "fedloge").joined_path("caught")
    own, shared = read_tensors(path)[0], read_tensors(runs / "fedloge" / "model.safetensors")[0]
    assert not any(name.startswith("backbone.") for name in own), "nothing else was trained"
    norms = own[PHI].norm(dim=1, keepdim=True)
    assert norms[:3].min() > norms[3:].max(), "the classes that it holds grow"
    torch.testing.assert_close(own["head.weight"], shared[f"model/{PSI}"] * norms)  # Eq. 7
    monkeypatch.setattr(ClientRuntime, "catch_up", lambda self, work: None)
    without = fedframe.personalise(runs / "fedloge", **given, overwrite=True, progress=False)
    assert torch.equal(read_tensors(path)[0][PHI], shared[f"model/{PHI}"])
    assert new.scores["personal"] > without.scores["personal"] + 0.04  # type: ignore[operator]


@pytest.mark.slow
def test_client_that_was_never_drawn_catches_up_and_the_others_keep_what_they_have(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"partition": "user", "model": "mlp:8", "participation": 0.25, "rounds": 1}
    result = fedframe.run("fedloge", data=blobs(), out=tmp_path / "run", **settings, **SMALL)
    start = read_tensors(result.folder / "model.safetensors")[0][f"model/{PHI}"]
    drawn = [int(path.parent.name) for path in (result.folder / "clients").rglob("*.safetensors")]
    assert len(drawn) == 1
    for client in range(4):
        own = read_tensors(personal_path(result.folder, client))[0][PHI]
        assert not torch.equal(own, start)
        if client in drawn:
            kept = read_tensors(next((result.folder / "clients").rglob("*.safetensors")))[0]
            assert torch.equal(own, kept[f"model/{PHI}"])


@pytest.mark.slow
def test_private_statistics_of_batch_norm_work_without_a_shared_model(tmp_path: Path) -> None:
    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features: torch.Tensor = self.norm(self.layer(x)).relu()
            return features

    data = blobs()
    result = fedframe.run("fedavg", data=data, model=Normed(), buffers="private", rounds=2, out=tmp_path / "r", **SMALL)
    new = result.personalise((data["x_test"], data["y_test"]), name="late", progress=False)
    assert new.scores["client"] is None
    assert new.scores["personal"] is not None
    assert new.scores["personal"] > 0.5
    assert len(new.model.predict(data["x_test"])) == len(data["x_test"])
    with pytest.raises(DataError, match=r"The net of .* came from Python; give it again there: fedframe.personalise"):
        fedframe.personalise(tmp_path / "r", (data["x_test"], data["y_test"]), progress=False)


# -- data ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_data_are_read_with_the_runs_classes_and_normalisation(tmp_path: Path) -> None:
    """A new client that lacks a class, and whose values lie elsewhere, meets the model as it was trained."""
    data = blobs()
    names = np.array(["ant", "bee", "cow"])
    data["y_train"], data["y_test"] = names[data["y_train"]], names[data["y_test"]]
    result = fedframe.run("fedavg", data=data, model="mlp:8", rounds=2, out=tmp_path / "run", **SMALL)
    some = data["y_test"] != "bee"
    late = (data["x_test"][some] + 1, data["y_test"][some])
    zero = {"fine_tune": {"epochs": 0}}
    new = result.personalise(late, name="late", test_share=0.5, set=zero, progress=False)
    assert list(new.summary["per_class"]) == ["ant", "cow"]
    assert new.model.predict(late[0]) == result.model.predict(late[0])  # untrained: normalised alike
    assert new.scores["personal"] == new.scores["client"]


@pytest.mark.slow
def test_table_of_a_new_client_is_encoded_as_the_runs(tmp_path: Path) -> None:
    write_table(tmp_path / "all.csv", 90, 0, "12x")
    write_table(tmp_path / "late.csv", 40, 1, "12")  # its stages look like numbers, but were texts in the training
    result = fedframe.run(
        "fedavg", data=f"csv:{tmp_path / 'all.csv'}", model="mlp:8", rounds=5, out=tmp_path / "r", **SMALL
    )
    out = command("personalise", "r", "--data", "csv:late.csv", folder=tmp_path)
    assert "name 3 clients; they are taken together as one" in out
    assert "a personal model for late: 30 training and 10 test samples, 2 of the run's 2 classes" in out
    assert command("predict", "r", "late.csv", "--client", "late", folder=tmp_path).count("\n") == 40
    columns = result.model.columns
    assert columns is not None
    from fedframe.data.new_client import load_new_client
    from fedframe.data.spec import DataSchema

    form = DataSchema(result.model.classes, result.model.stored_shape, columns, result.model.mean, result.model.std)
    client = load_new_client(f"csv:{tmp_path / 'late.csv'}", form, share=0.0, default_share=0.25)
    x = client.source.train.x.take(torch.arange(40))
    stage = [columns.index(f"stage={value}") for value in "12x"]
    assert x[:, stage].sum(0).tolist()[2] == 0
    assert torch.equal(x[:, stage].sum(1), torch.ones(40))
    assert x[3, columns.index("age")] == result.model.mean[columns.index("age")]  # missing: the run's mean, not its own


@pytest.mark.slow
def test_images_take_on_the_size_of_the_runs(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for place, side, count in (("all", 12, 20), ("late", 30, 8)):
        for name, shade in (("dark", 40), ("light", 200)):
            (tmp_path / place / name).mkdir(parents=True)
            for i in range(count):
                pixels = (shade + draw.integers(0, 40, (side, side))).astype(np.uint8)
                picture = image.fromarray(pixels)
                (picture.convert("RGB") if place == "late" else picture).save(tmp_path / place / name / f"{i}.png")
    lines = [f"late/{name}/{i}.png {name}" for name in ("dark", "light") for i in range(8)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    settings: dict[str, Any] = {"partition": "iid", "clients": 2, "rounds": 3, "model": "mlp:8"}
    fedframe.run("fedavg", data=f"imagefolder:{tmp_path / 'all'}", out=tmp_path / "run", **settings, **SMALL)
    for data, name in (("imagefolder:late", "late"), ("list:list.txt", "list")):
        kind, _, place = data.partition(":")
        new = fedframe.personalise(tmp_path / "run", f"{kind}:{tmp_path / place}", progress=False)
        assert new.name == name
        assert new.summary["samples"] == {"training": 12, "test": 4}
    late = f"imagefolder:{tmp_path / 'late'}"
    with pytest.raises(SettingError, match="the run's images are 12x12, not 30x30; leave size out"):
        fedframe.personalise(tmp_path / "run", f"{late}?size=30", progress=False)
    np.savez(tmp_path / "vectors.npz", x=draw.normal(size=(60, 4)), y=np.arange(60) % 2)
    fedframe.run("fedavg", data=f"npz:{tmp_path / 'vectors.npz'}", out=tmp_path / "vectors", **settings, **SMALL)
    with pytest.raises(DataError, match="the run takes vectors of 4 numbers; use data = npz:PATH"):
        fedframe.personalise(tmp_path / "vectors", late, progress=False)


@pytest.mark.slow
def test_every_kind_of_python_data_gives_the_same_model(runs: Path) -> None:
    _, north = split_digits()
    x, y = north["x"], north["y"]
    source = load_source((x[:150], y[:150], x[150:], y[150:]))
    kinds = {
        "spec": f"npz:{runs / 'north.npz'}",
        "arrays": (x, y),
        "dict": {"x_train": torch.from_numpy(x), "y_train": y.astype(np.int8)},
        "dataset": TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
    }
    paths = []
    for name, data in kinds.items():
        fedframe.personalise(runs / "fedavg", data, name=f"kind-{name}", progress=False)
        paths.append(RunFolder(runs / "fedavg").joined_path(f"kind-{name}"))
    states = [read_tensors(path)[0] for path in paths]
    assert all(equal_states(states[0], state) for state in states)
    assert (
        fedframe.personalise(runs / "fedavg", source, name="kind-source", progress=False).summary["samples"]["test"]
        > 50
    )


@pytest.mark.slow
def test_other_units_are_noticed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, north = split_digits()
    fedframe.personalise(runs / "fedavg", (north["x"] / 1000, north["y"]), name="units")
    assert "are they in the same units?" in capsys.readouterr().out
