"""`fedframe join` and `fedframe forget`: the model is that of a run with the client, or without it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedframe
from fedframe.errors import DataError, SettingError
from fedframe.jobs.build import make_clients
from fedframe.jobs.gather import gather
from fedframe.runs.folder import RunFolder
from fedframe.runs.join_forget import check_forgettable
from fedframe.runs.roster import Roster
from fedframe.util.text import percent
from tests.helpers import Recorder, blobs, images, same_file

DATA = blobs()
SETTINGS: dict[str, Any] = {"partition": "user", "workers": 1, "progress": False, "min_client_size": 1}
NEW = {"x_train": DATA["x_test"], "y_train": DATA["y_test"]}
KINDS: list[dict[str, Any]] = [
    {"map": "fixed", "width": 20},
    {"map": "data", "width": 20},
    {"map": "fixed", "width": 20, "balance": 0.5},
    {"map": "data", "width": 20, "tail": "equal_priors"},
]


def without(client: int, data: dict[str, Any] = DATA) -> dict[str, Any]:
    rest = data["user_train"] != client
    return {**data, **{name: data[name][rest] for name in ("x_train", "y_train", "user_train")}}


def trained(out: Path, data: dict[str, Any] = DATA, part: dict[str, Any] | None = None, **given: Any) -> Path:
    fedframe.run("analytic", data=data, out=out, set={"analytic": part or {"width": 30}}, **{**SETTINGS, **given})
    return out


def snapshot(folder: Path) -> dict[str, bytes]:
    """The content of all files that results are in; what a change writes about itself is left out."""
    texts = ("log.txt", "roster.json", "summary.json", ".lock")
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in texts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def probabilities(run: Path, client: int | str | None = None) -> torch.Tensor:
    return fedframe.Predictor.load(run, client).probabilities(DATA["x_test"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained(tmp_path / "run")


# -- forget ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("part", KINDS, ids=str)
def test_after_forget_the_model_is_that_of_a_run_whose_data_lack_the_client(
    tmp_path: Path, part: dict[str, Any]
) -> None:
    whole = trained(tmp_path / "whole", part=part, local_test=0.0)
    rest = trained(tmp_path / "rest", without(2), part, local_test=0.0)
    assert not torch.allclose(probabilities(whole), probabilities(rest), rtol=1e-5)
    fedframe.forget(whole, 2, run_data=DATA, progress=False)
    assert same_file(whole / "model.safetensors", rest / "model.safetensors")
    torch.testing.assert_close(probabilities(whole), probabilities(rest), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(probabilities(whole, 3), probabilities(rest, 2), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_the_same_with_images(tmp_path: Path) -> None:
    data = {**images(count=96), "user_train": np.arange(96) // 24}
    whole = trained(tmp_path / "whole", data, {"width": 54}, local_test=0.0, personal=False)
    rest = trained(tmp_path / "rest", without(0, data), {"width": 54}, local_test=0.0, personal=False)
    fedframe.forget(whole, "0", run_data=data, progress=False)
    assert same_file(whole / "model.safetensors", rest / "model.safetensors")


@pytest.mark.slow
def test_nothing_of_the_client_is_left_and_the_record_says_when(run: Path) -> None:
    fedframe.forget(run, 1, run_data=DATA, progress=False)
    assert not list(run.rglob("000001*"))
    assert {path.name for path in (run / "sums").iterdir()} == {f"{k:06d}-0.safetensors" for k in (0, 2, 3)}
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["clients"], summary["scores"]["personal"]["clients"]) == (3, 3)
    assert [(each["what"], each["client"]) for each in summary["changes"]] == [("forget", "1")]
    assert summary["changes"][0]["at"][:2] == "20"
    assert 1 not in json.loads((run / "client_scores.json").read_text())["clients"]
    assert "Forgot client 1" in (run / "log.txt").read_text()
    with pytest.raises(DataError, match="no personal model"):
        fedframe.Predictor.load(run, 1)


@pytest.mark.slow
def test_scores_are_those_of_the_new_model(run: Path) -> None:
    display, before = Recorder(), fedframe.Predictor.load(run).predict(DATA["x_test"])
    result = fedframe.forget(run, 1, run_data=DATA, progress=display)
    was = percent(float(np.mean([int(label) for label in before] == DATA["y_test"])))
    right = np.array([int(label) for label in result.model.predict(DATA["x_test"])]) == DATA["y_test"]
    assert result.scores["generic"]["final"] == pytest.approx(right.mean())
    said = f"The shared model: generic {percent(float(right.mean()))}, before {was}; client "
    assert any(note.startswith(said) for note in display.notes)


@pytest.mark.slow
def test_normalisation_that_was_agreed_on_leaves_sums_as_they_are(tmp_path: Path) -> None:
    """As in a federation: inputs are normalised by agreement, so that no client needs to be asked again."""
    asked = {"method": "analytic", "data": "python", "partition": "user", "local_test": 0.0}
    dealt = make_clients(gather(asked, None), DATA)
    agreed = replace(dealt, source=replace(dealt.source, mean=torch.zeros(5), std=torch.ones(5)))
    run, display = trained(tmp_path / "run", agreed), Recorder()  # type: ignore[arg-type]
    fedframe.forget(run, 2, run_data=agreed, progress=display)
    assert any("sums of 3 clients reused, none computed again" in note for note in display.notes)


@pytest.mark.slow
def test_forgetting_twice_changes_nothing_more(run: Path) -> None:
    fedframe.forget(run, 1, run_data=DATA, progress=False)
    before, display = snapshot(run), Recorder()
    fedframe.forget(run, 1, run_data=DATA, progress=display)
    assert snapshot(run) == before
    assert "nothing left to do" in display.notes[0]


# -- join --------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("part", KINDS, ids=str)
def test_join_then_forget_gives_back_every_bit(tmp_path: Path, part: dict[str, Any]) -> None:
    run = trained(tmp_path / "run", part=part)
    before = snapshot(run)
    joined = fedframe.join(run, NEW, name="new", run_data=DATA, progress=False)
    assert snapshot(run)["model.safetensors"] != before["model.safetensors"]
    assert joined.summary["joined"]["new"]["personal"] is not None
    assert len(joined.personal("new").predict(DATA["x_test"][:3])) == 3
    fedframe.forget(run, "new", run_data=DATA, progress=False)
    assert snapshot(run) == before


@pytest.mark.slow
def test_a_client_that_joins_counts_as_if_it_had_been_there(tmp_path: Path) -> None:
    """With features of its own scale nothing but the sums depends on who is there."""
    data = {**DATA, "x_train": np.concatenate([DATA["x_train"], DATA["x_test"]])}
    data["y_train"] = np.concatenate([DATA["y_train"], DATA["y_test"]])
    data["user_train"] = np.concatenate([DATA["user_train"], np.full(60, 4)])
    part = {"width": 0, "map": "data"}
    late = trained(tmp_path / "late", part=part, local_test=0.0)
    fedframe.join(late, NEW, name="new", run_data=DATA, progress=False)
    both = trained(tmp_path / "both", data, part, local_test=0.0)
    torch.testing.assert_close(probabilities(late), probabilities(both), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_join_says_once_what_is_odd_about_the_data(run: Path) -> None:
    first, later = Recorder(), Recorder()
    odd = {**NEW, "x_train": 40 * NEW["x_train"]}
    fedframe.join(run, odd, name="odd", run_data=DATA, progress=first)
    assert any("are they in the same units?" in note for note in first.notes)
    assert "are they in the same units?" in (run / "log.txt").read_text()
    fedframe.join(run, NEW, name="usual", run_data=DATA, progress=later)
    assert not any("units" in note for note in later.notes)


@pytest.mark.slow
def test_what_has_joined_stays_when_another_is_forgotten(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=NEW["x_train"], y=NEW["y_train"])
    spec = f"npz:{tmp_path / 'new.npz'}"
    fedframe.join(run, spec, name="new", run_data=DATA, progress=False)
    fedframe.forget(run, 0, run_data=DATA, progress=False)
    assert fedframe.Predictor.load(run, "new").predict(DATA["x_test"][:1])
    display = Recorder()
    fedframe.join(run, spec, name="new", run_data=DATA, progress=display)
    assert "nothing left to do" in display.notes[0]
    changes = json.loads((run / "summary.json").read_text())["changes"]
    assert [(each["what"], each["client"]) for each in changes] == [("join", "new"), ("forget", "0")]


@pytest.mark.slow
def test_whoever_leaves_need_not_wait_for_data_of_another_that_are_gone(run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", x=NEW["x_train"], y=NEW["y_train"])
        fedframe.join(run, f"npz:{tmp_path / name}.npz", name=name, run_data=DATA, progress=False)
    (tmp_path / "a.npz").unlink()
    display = Recorder()
    fedframe.forget(run, "b", run_data=DATA, progress=display)
    assert any("The data of a cannot be read" in note for note in display.notes)
    assert "a" not in json.loads((run / "summary.json").read_text())["joined"]
    alone = trained(tmp_path / "alone")
    np.savez(tmp_path / "a.npz", x=NEW["x_train"], y=NEW["y_train"])
    fedframe.join(alone, f"npz:{tmp_path / 'a'}.npz", name="a", run_data=DATA, progress=False)
    assert same_file(run / "model.safetensors", alone / "model.safetensors")
    (tmp_path / "a.npz").unlink()
    with pytest.raises(SettingError, match="put them back, or forget that client first"):
        fedframe.forget(run, 0, run_data=DATA, progress=False)  # other inputs: all sums are computed again


@pytest.mark.slow
def test_a_client_joins_a_run_that_had_rounds_and_may_leave_again(tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 1, "model": "mlp:8", "out": tmp_path / "run"}
    fedframe.run("scaffold+analytic", data=DATA, **settings)
    before = snapshot(tmp_path / "run")
    fedframe.join(tmp_path / "run", NEW, name="new", run_data=DATA, progress=False)
    fedframe.forget(tmp_path / "run", "new", run_data=DATA, progress=False)
    assert snapshot(tmp_path / "run") == before
    with pytest.raises(SettingError, match="took part in the 1 round"):
        fedframe.forget(tmp_path / "run", 0, run_data=DATA, progress=False)


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_other_methods_and_unfinished_runs_are_refused(tmp_path: Path, run: Path) -> None:
    fedframe.run("fedavg", data=DATA, rounds=1, out=tmp_path / "other", **SETTINGS)
    with pytest.raises(SettingError, match=r"fitted from sums over clients, and fedavg is not.*: analytic"):
        fedframe.forget(tmp_path / "other", 0, run_data=DATA)
    with pytest.raises(SettingError, match="fitted from sums over clients, and fedavg is not"):
        fedframe.join(tmp_path / "other", NEW, name="new", run_data=DATA)
    (run / "summary.json").unlink()
    with pytest.raises(SettingError, match="is not finished: finish it with 'fedframe resume"):
        fedframe.forget(run, 0, run_data=DATA)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["server", "node"])
def test_a_private_release_stays_the_only_one(tmp_path: Path, where: str) -> None:
    """Another, with noise of its own, would spend its epsilon once more: the summary's would be wrong."""
    pytest.importorskip("dp_accounting")
    private: dict[str, Any] = {"privacy_clip": 1.0, "privacy_noise": 2.0, "privacy_at": where, "weighting": "uniform"}
    run = trained(tmp_path / "run", **private)
    before = snapshot(run)
    refusal = r"one private release \(privacy_noise = 2\).*epsilon adds.*train again"
    with pytest.raises(SettingError, match=refusal):
        fedframe.forget(run, 1, run_data=DATA)
    with pytest.raises(SettingError, match=refusal):
        fedframe.join(run, NEW, name="new")
    assert snapshot(run) == before


@pytest.mark.slow
def test_securely_added_sums_are_not_taken_apart(run: Path) -> None:
    settings = RunFolder(run).settings().model_copy(update={"secure": True})
    with pytest.raises(SettingError, match="would show what 1 alone has sent; set up a federation without it"):
        check_forgettable(RunFolder(run), settings, 1, "1", Roster())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "name", "sentence"),
    [
        ({"x_train": NEW["x_train"][:, :3], "y_train": NEW["y_train"]}, "new", "of shape"),
        ({"x_train": NEW["x_train"], "y_train": NEW["y_train"] + 7}, "new", "no class"),
        (NEW, "7", "cannot be used"),
    ],
)
def test_data_and_names_that_do_not_fit_are_refused_and_change_nothing(
    run: Path, new: dict[str, Any], name: str, sentence: str
) -> None:
    before = snapshot(run)
    with pytest.raises((SettingError, DataError), match=sentence):
        fedframe.join(run, new, name=name, run_data=DATA, progress=False)
    assert snapshot(run) == before


@pytest.mark.slow
def test_the_last_client_and_one_that_there_is_not_are_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", blobs(clients=2))
    with pytest.raises(SettingError, match="the clients are 0 to 1"):
        fedframe.forget(run, 5, run_data=blobs(clients=2), progress=False)
    fedframe.forget(run, 0, run_data=blobs(clients=2), progress=False)
    with pytest.raises(SettingError, match="only client that is left"):
        fedframe.forget(run, 1, run_data=blobs(clients=2), progress=False)


# -- a process that is killed ------------------------------------------------------------------------------------------
class Killed(BaseException):
    """Stands for kill -9: nothing of ours may catch it."""


def kill_after(monkeypatch: pytest.MonkeyPatch, until: int) -> None:
    """Let so many steps on the file system pass, then be killed before the next."""
    count = iter(range(10**6))

    def counted(original: Any) -> Any:
        def step(*args: Any, **given: Any) -> Any:
            if next(count) >= until:
                raise Killed
            return original(*args, **given)

        return step

    for name in ("rename", "unlink", "replace"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["join", "forget"])
def test_killed_anywhere_the_folder_is_as_before_or_as_after(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(run: Path) -> None:
        if what == "join":
            np.savez(tmp_path / "new.npz", x=NEW["x_train"], y=NEW["y_train"])
            fedframe.join(run, f"npz:{tmp_path / 'new.npz'}", name="new", run_data=DATA, progress=False)
        else:
            fedframe.forget(run, 1, run_data=DATA, progress=False)

    source = trained(tmp_path / "source", part={"width": 4}, personal=False)
    before = snapshot(source)
    shutil.copytree(source, tmp_path / "after")
    change(tmp_path / "after")
    after = snapshot(tmp_path / "after")
    seen = set()
    for until in range(1000):
        run = tmp_path / "cut"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(source, run)
        with monkeypatch.context() as patch:
            kill_after(patch, until)
            try:
                change(run)
                finished = True
            except Killed:
                finished = False
        RunFolder.open(run)  # whoever comes next
        found = {name: content for name, content in snapshot(run).items() if not name.startswith(".changing")}
        assert found in (before, after)
        seen.add(found == after)
        change(run)
        assert snapshot(run) == after
        assert len(json.loads((run / "roster.json").read_text())["changes"]) == 1
        if finished:
            break
    assert seen == {True, False}


# -- properties --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners=st.lists(st.integers(0, 3), min_size=96, max_size=96), order=st.randoms(use_true_random=False))
def test_any_split_and_any_order_give_the_same_model(
    tmp_path_factory: pytest.TempPathFactory, owners: list[int], order: Any
) -> None:
    folder = tmp_path_factory.mktemp("split")
    rows = list(range(96))
    order.shuffle(rows)
    other = {**DATA, "x_train": DATA["x_train"][rows], "y_train": DATA["y_train"][rows]}
    other["user_train"] = np.unique(owners, return_inverse=True)[1]
    found = [
        probabilities(trained(folder / str(i), data, {"width": 12, "ridge": 0.1}, local_test=0.0, personal=False))
        for i, data in enumerate((DATA, other))
    ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.sets(st.integers(0, 59), min_size=4, max_size=40), order=st.permutations(["a", "b"]))
def test_whoever_joins_and_leaves_in_any_order_leaves_the_model_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: set[int], order: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("joining")
    run = trained(folder / "run", part={"width": 12}, personal=False)
    before = (run / "model.safetensors").read_bytes()
    for name, some in (("a", sorted(rows)[::2]), ("b", sorted(rows)[1::2])):
        np.savez(folder / f"{name}.npz", x=DATA["x_test"][some], y=DATA["y_test"][some])
        fedframe.join(run, f"npz:{folder / name}.npz", name=name, test_share=0.0, run_data=DATA, progress=False)
    for name in order:
        fedframe.forget(run, name, run_data=DATA, progress=False)
    assert (run / "model.safetensors").read_bytes() == before
