"""What is asked of `personalise`: names, shares of test data, mistakes; nothing is overwritten or written in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedframe
from fedframe.core.client_runtime import ClientRuntime
from fedframe.errors import DataError, RunError, SettingError
from fedframe.runs.folder import RunFolder
from tests.cli.test_cli import fedframe as command
from tests.helpers import blobs, same_file
from tests.runs.personalising import SMALL, runs, split_digits, write_table

__all__ = ["runs"]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_labels_as_numbers_are_not_guessed_where_classes_have_names(tmp_path: Path) -> None:
    data = blobs(classes=2)
    names = np.array(["well", "sick"])
    texts = {**data, "y_train": names[data["y_train"]], "y_test": names[data["y_test"]]}
    result = fedframe.run("fedavg", data=texts, model="mlp:8", rounds=1, out=tmp_path / "run", **SMALL)
    with pytest.raises(DataError, match="write labels as the run's names: sick, well"):
        result.personalise((data["x_test"], data["y_test"]), progress=False)
    with pytest.raises(DataError, match="did you mean 'sick'"):
        result.personalise((data["x_test"], np.char.add(texts["y_test"], "k")), progress=False)


@pytest.mark.slow
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
    refused("age,sex,stage,target\nold,m,1,sick\n", r"late.csv: the column 'age' holds texts \('old'\), and held")
    refused("age,sex,stage,target\n50,m,1,dead\n", "the label 'dead' is no class of the run; choose one of: sick, well")
    refused("age,sex,stage,target\n50,m,1,sick\n", "label is 'nothing'", "nothing")
    (tmp_path / "late.csv").write_text("outcome,age,sex,stage\n" + "sick,70,m,1\nwell,40,f,x\n" * 5)
    assert fedframe.personalise(tmp_path / "run", late, label="outcome", progress=False).name == "late"
    fedframe.run("fedavg", clients=2, rounds=1, out=tmp_path / "digits", **SMALL)
    with pytest.raises(
        DataError, match=r"a table, but what was agreed on, or trained, are arrays of shape \(8, 8, 1\); use data = npz"
    ):
        fedframe.personalise(tmp_path / "digits", late, progress=False)


@pytest.mark.slow
def test_run_that_is_not_finished_or_no_run_is_refused(runs: Path, tmp_path: Path) -> None:
    assert "nowhere is not a run folder" in command(
        "personalise", "nowhere", "--data", "digits", folder=tmp_path, ok=False
    )
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.yaml").write_bytes((runs / "fedavg" / "config.yaml").read_bytes())
    said = command("personalise", "cut", "--data", "digits", folder=tmp_path, ok=False)
    assert "finish the run with 'fedframe resume cut'" in said


@pytest.mark.slow
def test_without_a_checkpoint_the_shared_model_is_enough(runs: Path, tmp_path: Path, capsys: Any) -> None:
    """What a new client elsewhere is sent: settings and model; SCAFFOLD's variates count in rounds only."""
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

    monkeypatch.setattr(ClientRuntime, "catch_up", stop)
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

    monkeypatch.setattr(ClientRuntime, "catch_up", other)
    with pytest.raises(SettingError, match="already has a personal model 'contested'"):
        fedframe.personalise(runs / "fedavg", f"npz:{runs / 'north.npz'}", name="contested", progress=False)
    assert path.read_bytes() == b"theirs"
    path.unlink()


@pytest.mark.slow
def test_worse_personal_model_is_said_to_be_worse(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained on labels of chance and tested on true ones."""
    inside, _ = split_digits()
    x, y = inside["x"][:100], inside["y"][:100]
    chance = np.random.default_rng(0).permutation(y)
    new = fedframe.personalise(runs / "spherefed", (x, chance, x, y), name="worse")
    assert new.scores["personal"] < new.scores["client"]  # type: ignore[operator]
    assert "Here the shared model does better than worse's own" in capsys.readouterr().out
