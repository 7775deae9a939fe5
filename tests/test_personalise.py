"""Personal models for clients that were not in the training, from a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import fedframe
from fedframe.core.files import read_tensors
from fedframe.core.job import personal_path
from fedframe.core.site import Site
from fedframe.data import load_source
from fedframe.errors import DataError, RunError, SettingError
from fedframe.folder import RunFolder
from fedframe.parts.fedloge import PHI, PSI
from tests.helpers import blobs, equal_states, same_file
from tests.test_cli import fedframe as command

SMALL: dict[str, Any] = {"workers": 1, "progress": False}
RECIPES = ("fedavg", "fedetf", "fedloge", "spherefed", "scaffold", "fedavg+frozen_random")
Arrays = dict[str, npt.NDArray[Any]]


def split_digits() -> tuple[Arrays, Arrays]:
    """Digits of five clients, and of a sixth that sees little but 0, 1 and 2 and stays outside."""
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    draw = np.random.default_rng(0)
    outside = draw.random(len(y)) < np.where(y <= 2, 0.5, 0.02)
    user = draw.integers(0, 5, (~outside).sum())
    return {"x": x[~outside], "y": y[~outside], "user": user}, {"x": x[outside], "y": y[outside]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every recipe, without the sixth client."""
    folder = tmp_path_factory.mktemp("runs")
    inside, outside = split_digits()
    np.savez(folder / "inside.npz", **inside)  # type: ignore[arg-type]
    np.savez(folder / "north.npz", **outside)  # type: ignore[arg-type]
    for method in RECIPES:
        fedframe.run(method, data=f"npz:{folder / 'inside.npz'}", rounds=2, out=folder / method, **SMALL)
    return folder


@pytest.mark.parametrize("method", RECIPES)
def test_newcomer_gets_a_model_that_is_better_for_it(runs: Path, method: str) -> None:
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
    assert json.loads((runs / "fedavg" / "personal" / "joined" / "counted.json").read_text()) == new.summary
    assert set(new.scores) <= set(new.summary["definitions"])


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
def test_private_head_of_a_newcomer_is_trained_before_it_is_used(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms of its class vectors are all that LA-FR takes from it: untrained, they say nothing."""
    given: dict[str, Any] = {"data": f"npz:{runs / 'north.npz'}", "name": "caught", "set": {"la_fr": {"epochs": 0}}}
    new = fedframe.personalise(runs / "fedloge", **given, progress=False)
    path = RunFolder(runs / "fedloge").joined_path("caught")
    own, shared = read_tensors(path)[0], read_tensors(runs / "fedloge" / "model.safetensors")[0]
    assert not any(name.startswith("backbone.") for name in own), "nothing else was trained"
    norms = own[PHI].norm(dim=1, keepdim=True)
    assert norms[:3].min() > norms[3:].max(), "the classes that it holds grow"
    torch.testing.assert_close(own["head.weight"], shared[f"model/{PSI}"] * norms)  # Eq. 7
    monkeypatch.setattr(Site, "catch_up", lambda self, work: None)
    without = fedframe.personalise(runs / "fedloge", **given, overwrite=True, progress=False)
    assert torch.equal(read_tensors(path)[0][PHI], shared[f"model/{PHI}"])
    assert new.scores["personal"] > without.scores["personal"] + 0.04  # type: ignore[operator]


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
def test_data_are_read_with_the_runs_classes_and_normalisation(tmp_path: Path) -> None:
    """A newcomer that lacks a class, and whose values lie elsewhere, meets the model as it was trained."""
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


TABLE = "age,sex,stage,hospital,target\n"


def write_table(path: Path, rows: int, seed: int, stages: str, header: str = TABLE) -> None:
    draw = np.random.default_rng(seed)
    lines = []
    for i in range(rows):
        sick = bool(draw.integers(2))
        age = "" if i == 3 else f"{draw.normal(70 if sick else 40, 5):.1f}"
        lines.append(
            f"{age},{draw.choice(['f', 'm'])},{draw.choice(list(stages))},h{i % 3},{'sick' if sick else 'well'}"
        )
    path.write_text(header + "\n".join(lines) + "\n")


def test_table_of_a_newcomer_is_encoded_as_the_runs(tmp_path: Path) -> None:
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
    from fedframe.data.newcomer import load_newcomer
    from fedframe.data.raw import Form

    form = Form(result.model.classes, result.model.stored_shape, columns, result.model.mean, result.model.std)
    client = load_newcomer(f"csv:{tmp_path / 'late.csv'}", form, share=0.0, usual_share=0.25)
    x = client.source.train.x.take(torch.arange(40))
    stage = [columns.index(f"stage={value}") for value in "12x"]
    assert x[:, stage].sum(0).tolist()[2] == 0
    assert torch.equal(x[:, stage].sum(1), torch.ones(40))
    assert x[3, columns.index("age")] == result.model.mean[columns.index("age")]  # missing: the run's mean, not its own


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


def test_other_units_are_noticed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, north = split_digits()
    fedframe.personalise(runs / "fedavg", (north["x"] / 1000, north["y"]), name="units")
    assert "are they in the same units?" in capsys.readouterr().out


# -- names, shares, mistakes -----------------------------------------------------------------------------------------
def test_command_line_from_the_data_to_a_prediction(runs: Path) -> None:
    _, north = split_digits()
    np.savez(runs / "new.npz", x=north["x"][:5])
    out = command("personalise", "fedetf", "--data", "npz:north.npz", "--set", "fedetf_stage.iterations=1", folder=runs)
    assert "client stage fedetf_stage (feature_epochs=5, iterations=1" in out
    assert "accuracy of the shared model on north's own" in out
    assert "accuracy of north's own model on the same samples" in out
    assert "fedframe predict fedetf INPUT --client north" in out
    assert "\x1b" not in out
    own = command("predict", "fedetf", "new.npz", "--client", "north", folder=runs)
    assert own.count("\n") == 5
    assert own != command("predict", "fedetf", "new.npz", folder=runs)
    assert "did you mean 'north'" in command("predict", "fedetf", "new.npz", "--client", "noth", folder=runs, ok=False)
    assert command("personalise", "fedetf", "--data", "npz:north.npz", "--overwrite", "--quiet", folder=runs) == ""


def test_share_of_zero_trains_on_everything_and_invents_no_score(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, north = split_digits()
    new = fedframe.personalise(runs / "fedavg", (north["x"], north["y"]), name="all", test_share=0)
    assert new.scores == {"client": None, "personal": None}
    assert new.summary["samples"] == {"training": len(north["y"]), "test": 0}
    out = capsys.readouterr().out
    assert "There are no test samples, so there is no score" in out
    assert "%" not in out


def test_share_follows_the_run_unless_it_is_given(runs: Path, tmp_path: Path) -> None:
    _, north = split_digits()
    data, total = (north["x"], north["y"]), len(north["y"])
    for name, share, expected in (("usual", None, 0.25), ("half", 0.5, 0.5)):
        new = fedframe.personalise(runs / "fedavg", data, name=name, test_share=share, progress=False)
        assert new.summary["samples"]["test"] == pytest.approx(expected * total, abs=1)
    out = tmp_path / "global"
    fedframe.run("fedavg", clients=4, local_test="global", rounds=1, out=out, **SMALL)
    new = fedframe.personalise(out, data, progress=False)
    assert new.name == "arrays"
    assert new.summary["samples"]["test"] == pytest.approx(0.25 * total, abs=1)


def test_nothing_is_overwritten_unless_asked(runs: Path) -> None:
    data, folder = f"npz:{runs / 'north.npz'}", runs / "spherefed"
    fedframe.personalise(folder, data, name="kept", progress=False)
    path = RunFolder(folder).joined_path("kept")
    before = path.read_bytes()
    with pytest.raises(SettingError, match=r"already has a personal model 'kept'; choose another name, such as kept-2"):
        fedframe.personalise(folder, data, name="kept", seed=5, progress=False)
    assert path.read_bytes() == before
    fedframe.personalise(folder, data, name="kept", seed=5, overwrite=True, progress=False)
    assert path.read_bytes() != before


def test_name_of_a_client_of_the_training_is_refused(tmp_path: Path) -> None:
    data = blobs(clients=3)
    data["user_train"] = np.array(["north", "south", "west"])[data["user_train"]]
    result = fedframe.run("fedavg", data=data, model="mlp:8", rounds=1, out=tmp_path / "run", **SMALL)
    late = (data["x_test"], data["y_test"])
    with pytest.raises(SettingError, match=r"name = 'south' is a client of the training in .*, such as south-2"):
        result.personalise(late, name="south", progress=False)
    result.personalise(late, name="east", progress=False)
    assert result.personal("east").predict(late[0]) != result.personal("south").predict(late[0])
    with pytest.raises(SettingError, match="did you mean 'east'"):
        result.personal("easy")


def wrong_cases() -> list[tuple[dict[str, Any], str]]:
    """Every mistake with the sentence that answers it."""
    _, north = split_digits()
    x, y = north["x"][:40], north["y"][:40]
    texts = np.array(["nul", "one", "two", "six", "six", "six", "six", "six", "six", "six"])[y]
    return [
        ({"data": (x, np.where(y == 2, 12, y))}, r"the label '12' is no class of the run; did you mean"),
        ({"data": (x, texts)}, r"the labels .* are no classes of the run; choose one of: 0, 1, 2"),
        (
            {"data": (x[:, :7, :7], y)},
            r"shape \(7, 7, 1\), but the run was trained on \(8, 8, 1\); give x as \(n, 8, 8\)",
        ),
        ({"data": (x.reshape(40, 64), y)}, r"shape \(64,\), but the run was trained on \(8, 8, 1\)"),
        ({"data": (x[:0], y[:0])}, "holds no samples"),
        ({"data": "npz:nowhere.npz"}, "there is no .*nowhere.npz"),
        ({"data": "digit"}, "did you mean 'digits'"),
        ({"data": 7}, "data is a int, which is not understood"),
        ({"test_share": 1.0}, r"test_share is 1; use a share from 0 to below 1, e.g. 0.25"),
        ({"test_share": -0.1}, r"test_share is -0.1"),
        (
            {"data": (x[:20], y[:20], x[20:], y[20:]), "test_share": 0.5},
            "20 test samples of their own; leave test_share out",
        ),
        ({"name": "7"}, "name = '7' cannot be used .*; try 'client-7'"),
        ({"name": "../up"}, "name = '../up' cannot be used .*; try 'up'"),
        ({"name": ""}, "name = '' cannot be used .*; try 'newcomer'"),
        ({"set": {"fine_tune": {"epoch": 3}}}, "did you mean 'epochs'"),
        ({"set": {"fine_tune": {"epochs": -3}}}, "fine_tune.epochs = -3.*the default is 5"),
        (
            {"set": {"linear": {"bias": False}}},
            "set 'linear' belongs to the training, .*only fine_tune can be set: epochs",
        ),
        ({"set": ["a"]}, "cannot be read"),
        ({"seed": -1}, "seed = -1"),
        ({"device": "tpu"}, "device = 'tpu'.*use cpu"),
        ({"set": {"fine_tune": {"lr": 1e30}}}, "NaN or infinite weights and was not saved; .*--set fine_tune.lr=0.01"),
    ]


@pytest.mark.parametrize(("wrong", "sentence"), wrong_cases())
def test_mistake_is_one_sentence_and_nothing_is_written(runs: Path, wrong: dict[str, Any], sentence: str) -> None:
    _, north = split_digits()
    before = sorted((runs / "fedavg").rglob("*"))
    given = {"data": (north["x"], north["y"]), "name": "wrong", **wrong}
    with pytest.raises((SettingError, DataError, RunError), match=sentence) as caught:
        fedframe.personalise(runs / "fedavg", **given, progress=False)
    assert "\n" not in str(caught.value)
    assert sorted((runs / "fedavg").rglob("*")) == before


def test_labels_as_numbers_are_not_guessed_where_classes_have_names(tmp_path: Path) -> None:
    data = blobs(classes=2)
    names = np.array(["well", "sick"])
    texts = {**data, "y_train": names[data["y_train"]], "y_test": names[data["y_test"]]}
    result = fedframe.run("fedavg", data=texts, model="mlp:8", rounds=1, out=tmp_path / "run", **SMALL)
    with pytest.raises(DataError, match="write labels as the run's names: sick, well"):
        result.personalise((data["x_test"], data["y_test"]), progress=False)
    with pytest.raises(DataError, match="did you mean 'sick'"):
        result.personalise((data["x_test"], np.char.add(texts["y_test"], "k")), progress=False)


def test_table_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    write_table(tmp_path / "all.csv", 60, 0, "12x")
    fedframe.run("fedavg", data=f"csv:{tmp_path / 'all.csv'}", model="mlp:8", rounds=1, out=tmp_path / "run", **SMALL)

    late = f"csv:{tmp_path / 'late.csv'}"

    def refused(text: str, sentence: str, label: str | None = None) -> None:
        (tmp_path / "late.csv").write_text(text)
        with pytest.raises((DataError, SettingError), match=sentence) as caught:
            fedframe.personalise(tmp_path / "run", late, label=label, progress=False)
        assert "\n" not in str(caught.value)

    refused("age,stage,target\n50,1,sick\n60,2,well\n", "late.csv: the table lacks the column 'sex'")
    refused("target,stage,sex,age\n", "late.csv is empty")
    refused("age,sex,stage\n50,m,1\n40,f,2\n", "'stage' is an input of the run and cannot be the label; add a column")
    refused("outcome,age,sex,stage\nsick,50,m,1\n", "cannot be the label; set label to one of: outcome")
    refused(
        "age,sex,stage,target\nold,m,1,sick\n", "late.csv: the column 'age' holds texts, and held numbers in training"
    )
    refused("age,sex,stage,target\n50,m,1,dead\n", "the label 'dead' is no class of the run; choose one of: sick, well")
    refused("age,sex,stage,target\n50,m,1,sick\n", "label is 'nothing'", "nothing")
    (tmp_path / "late.csv").write_text("outcome,age,sex,stage\n" + "sick,70,m,1\nwell,40,f,x\n" * 5)
    assert fedframe.personalise(tmp_path / "run", late, label="outcome", progress=False).name == "late"
    fedframe.run("fedavg", clients=2, rounds=1, out=tmp_path / "digits", **SMALL)
    with pytest.raises(
        DataError, match=r"a table, but the run was trained on arrays of shape \(8, 8, 1\); use data = npz"
    ):
        fedframe.personalise(tmp_path / "digits", late, progress=False)


def test_run_that_is_not_finished_or_no_run_is_refused(runs: Path, tmp_path: Path) -> None:
    assert "nowhere is not a run folder" in command(
        "personalise", "nowhere", "--data", "digits", folder=tmp_path, ok=False
    )
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.yaml").write_bytes((runs / "fedavg" / "config.yaml").read_bytes())
    said = command("personalise", "cut", "--data", "digits", folder=tmp_path, ok=False)
    assert "finish the run with 'fedframe resume cut'" in said


def test_without_a_checkpoint_the_shared_model_is_enough(runs: Path, tmp_path: Path, capsys: Any) -> None:
    """What a newcomer elsewhere is sent: settings and model; SCAFFOLD's variates count in rounds only."""
    for name in ("config.yaml", "model.safetensors"):
        (tmp_path / name).write_bytes((runs / "scaffold" / name).read_bytes())
    data = f"npz:{runs / 'north.npz'}"
    fedframe.personalise(tmp_path, data, name="elsewhere")
    assert "has no checkpoint" in capsys.readouterr().out
    fedframe.personalise(runs / "scaffold", data, name="elsewhere", progress=False)
    first, second = (RunFolder(folder).joined_path("elsewhere") for folder in (tmp_path, runs / "scaffold"))
    assert same_file(first, second)


def test_stop_saves_nothing_and_says_so(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Site, "catch_up", stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        fedframe.personalise(runs / "fedavg", f"npz:{runs / 'north.npz'}", name="stopped", progress=False)
    assert caught.value.__notes__ == ["No personal model was saved."]
    assert not list((runs / "fedavg").rglob("*stopped*"))


def test_name_that_another_process_takes_meanwhile_is_not_overwritten(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = RunFolder(runs / "fedavg").joined_path("contested")

    def other(*_: object) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"theirs")

    monkeypatch.setattr(Site, "catch_up", other)
    with pytest.raises(SettingError, match="already has a personal model 'contested'"):
        fedframe.personalise(runs / "fedavg", f"npz:{runs / 'north.npz'}", name="contested", progress=False)
    assert path.read_bytes() == b"theirs"
    path.unlink()


def test_worse_personal_model_is_said_to_be_worse(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained on labels of chance and tested on true ones."""
    inside, _ = split_digits()
    x, y = inside["x"][:100], inside["y"][:100]
    chance = np.random.default_rng(0).permutation(y)
    new = fedframe.personalise(runs / "spherefed", (x, chance, x, y), name="worse")
    assert new.scores["personal"] < new.scores["client"]  # type: ignore[operator]
    assert "Here the shared model does better than worse's own" in capsys.readouterr().out
