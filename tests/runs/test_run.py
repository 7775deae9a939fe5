"""A run from start to end: the folder, and resuming after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import fedframe
import fedframe.models.frames
from fedframe.data import load_source
from fedframe.errors import DataError, RunError, SettingError
from fedframe.jobs.gather import gather
from fedframe.runs.folder import RunFolder
from fedframe.util.files import read_tensors
from tests.helpers import Recorder, blobs, same_file
from tests.hold import DEADLINE, environment, wait_until, wait_until_free

SMALL: dict[str, Any] = {"rounds": 3, "epochs": 1, "workers": 1, "progress": False}


@pytest.mark.slow
def test_run_leaves_a_complete_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = fedframe.run("fedavg", data="digits", clients=5, out=out, **SMALL)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    for key in ("loss", "generic", "client", "seconds", "bytes_up", "bytes_down", "dropped"):
        assert key in lines[-1]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["scores"]["generic"]["last"] == lines[-1]["generic"]
    assert summary["scores"]["generic"]["last_five"] == pytest.approx(np.mean([line["generic"] for line in lines]))
    assert set(summary["scores"]) <= set(summary["definitions"])
    assert summary["scores"]["personal"]["clients"] == 5
    assert summary["peak_memory_mb"] > 50
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["clients"] == 5
    assert config["model"] == "mlp"
    assert len(result.history) == 3
    assert result.scores["generic"]["final"] == summary["scores"]["generic"]["final"]


@pytest.mark.slow
def test_saved_model_predicts_what_the_score_says(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data="digits", clients=5, out=tmp_path / "run", **SMALL)
    source = load_source("digits")
    assert source.test is not None
    raw = source.test.x.take(torch.arange(len(source.test.y)))
    right = [source.classes[int(y)] == name for y, name in zip(source.test.y, result.model.predict(raw), strict=True)]
    assert np.mean(right) == pytest.approx(result.scores["generic"]["final"])
    assert result.personal(2).predict(raw) != result.model.predict(raw)


@pytest.mark.slow
def test_frozen_class_vectors_are_sent_once_and_not_in_rounds(tmp_path: Path) -> None:
    plain, frozen = (
        fedframe.run(method, data="digits", clients=5, model="mlp:32", out=tmp_path / method, **SMALL)
        for method in ("fedavg", "fedavg+etf")
    )
    saved = 3 * 5 * 4 * (32 * 10 + 10)  # rounds x clients x (weights and biases of the classifier)
    lined_up = 3 * 5 * 64  # tensors start on 64-byte lines
    difference = plain.summary["bytes_down"] - frozen.summary["bytes_down"]
    assert saved <= difference <= saved + 2 * lined_up
    assert plain.summary["bytes_up"] - frozen.summary["bytes_up"] == difference
    assert (plain.summary["bytes_once"], frozen.summary["bytes_once"]) == (0, 5 * 4 * 32 * 10)


@pytest.mark.slow
def test_class_vectors_come_from_the_file_and_are_not_searched_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fedframe.run("fedloge", data="digits", clients=5, out=tmp_path / "run", **SMALL)
    inputs = np.random.default_rng(0).integers(0, 17, (30, 8, 8, 1)).astype(np.float32)
    expected = result.model.predict(inputs)
    monkeypatch.setattr(fedframe.models.frames, "_try_sparse", lambda *_: pytest.fail("it searches"))
    assert fedframe.Predictor.load(tmp_path / "run").predict(inputs) == expected


@pytest.mark.slow
def test_config_file_of_a_run_runs_again_to_the_same_model(tmp_path: Path) -> None:
    first = fedframe.run("fedavg", data="digits", clients=4, seed=3, out=tmp_path / "a", **SMALL)
    fedframe.run(config=first.folder / "config.yaml", out=tmp_path / "b", progress=False)
    assert same_file(tmp_path / "a" / "model.safetensors", tmp_path / "b" / "model.safetensors")
    assert same_file(tmp_path / "a" / "config.yaml", tmp_path / "b" / "config.yaml")


def test_given_beats_file_beats_default(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("rounds: 2\nlr: 0.3\nset:\n  fine_tune: {epochs: 2, what: head}\n")
    settings = gather({"lr": 0.2, "set": {"fine_tune": {"epochs": 1}}}, config)
    assert (settings.rounds, settings.lr, settings.batch) == (2, 0.2, 32)
    assert settings.set == {"fine_tune": {"epochs": 1, "what": "head"}}


@pytest.mark.slow
def test_other_seed_other_model(tmp_path: Path) -> None:
    for seed in (0, 1):
        fedframe.run("fedavg", data="digits", clients=4, seed=seed, out=tmp_path / str(seed), **SMALL)
    assert not same_file(tmp_path / "0" / "model.safetensors", tmp_path / "1" / "model.safetensors")


SCRIPT = """
import json, sys, fedframe
fedframe.run(data="digits", clients=6, rounds=12, epochs=3, workers=int(sys.argv[2]), momentum=0.9, lr=0.05,
             out=sys.argv[1], progress=False, **json.loads(sys.argv[3]))
"""  # no `if __name__ == "__main__"`: users' scripts often have none


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedavg", "keep_optimizer": True},
        {"method": "scaffold+moon+fedloge", "participation": 0.5},  # variates, last models and heads stay with clients
    ],
)
def test_killed_and_resumed_run_equals_an_unbroken_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, script, tmp_path / "whole", "3", json.dumps(settings)], check=True)
    held = tmp_path / "held.py"
    held.write_text(f"from tests.hold import hold\nhold(rounds=3)\n{SCRIPT}")
    command: list[str | Path] = [sys.executable, held, tmp_path / "cut", "2", json.dumps(settings)]
    process = subprocess.Popen(command, env=environment())
    wait_until(lambda: len(RunFolder(tmp_path / "cut").metrics()) >= 3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until_free(tmp_path / "cut")
    assert not (tmp_path / "cut" / "summary.json").exists()
    finished = RunFolder(tmp_path / "cut").checkpoint()
    assert finished is not None
    assert finished[0] >= 2
    fedframe.resume(tmp_path / "cut", progress=False)
    tensors = sorted((tmp_path / "whole").rglob("*.safetensors"))
    kept = [path.relative_to(tmp_path / "whole") for path in tensors if not path.name.startswith("checkpoint")]
    assert len(kept) >= 1 + 6 + 6  # the model, six personal ones, six clients' private state
    for path in kept:
        assert same_file(tmp_path / "whole" / path, tmp_path / "cut" / path), path
    keys = ("round", "loss", "generic", "client", "bytes_up")
    histories = [RunFolder(tmp_path / name).metrics() for name in ("whole", "cut")]
    assert [[line[key] for key in keys] for line in histories[0]] == [
        [line[key] for key in keys] for line in histories[1]
    ]


@pytest.mark.slow
def test_net_that_exists_only_in_a_notebook_cell_runs_in_workers(tmp_path: Path) -> None:
    cell = (
        "import fedframe, sys, torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(64, 20)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x.flatten(1)).relu()\n"
        "result = fedframe.run('fedavg', model=Mine(), clients=4, rounds=2, workers=2, out=sys.argv[1])\n"
        "print(result.scores['generic']['last'])\n"
    )
    command = [sys.executable, "-", str(tmp_path / "run")]  # read from standard input: there is no file to import
    done = subprocess.run(command, input=cell, capture_output=True, text=True, check=True)
    assert 0 <= float(done.stdout.splitlines()[-1]) <= 1


@pytest.mark.slow
def test_killed_parent_leaves_no_workers_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("rounds=12", "rounds=2000"))
    process = subprocess.Popen([sys.executable, script, tmp_path / "cut", "2", "{}"])
    wait_until(lambda: bool(RunFolder(tmp_path / "cut").metrics()))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(alive(int(child)) for child in children))


@pytest.mark.slow
def test_workers_of_a_killed_run_free_its_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of a client that takes long: its worker would write private state into a resumed run."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time, torch, pathlib, fedframe\n"
        "class Slow(torch.nn.Linear):\n"
        "    dim = 5\n"
        "    def forward(self, x):\n"
        "        if self.training:\n"
        "            pathlib.Path(sys.argv[1] + '-busy').touch()\n"
        "            time.sleep(100_000)\n"
        "        return super().forward(x.flatten(1))\n"
        "fedframe.run('fedavg', model=Slow(64, 5), clients=4, workers=2, out=sys.argv[1], progress=False)\n"
    )
    process = subprocess.Popen([sys.executable, script, tmp_path / "cut"])
    wait_until(lambda: (tmp_path / "cut-busy").exists())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    monkeypatch.setattr("fedframe.runs.folder.PATIENCE", DEADLINE)
    with RunFolder(tmp_path / "cut").alone():
        pass


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_finished_run_is_returned_as_it_is(tmp_path: Path) -> None:
    fedframe.run("fedavg", data="digits", clients=4, out=tmp_path / "run", **SMALL)
    before = (tmp_path / "run" / "summary.json").read_bytes()
    fedframe.resume(tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


@pytest.mark.slow
def test_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    fedframe.run("fedavg", data="digits", clients=4, out=tmp_path / "run", **SMALL)
    with pytest.raises(SettingError, match="already holds a run; go on with 'fedframe resume"):
        fedframe.run("fedavg", data="digits", clients=4, out=tmp_path / "run", **SMALL)


def test_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(SettingError, match="holds other files; choose a new folder"):
        fedframe.run("fedavg", data="digits", out=tmp_path, **SMALL)


@pytest.mark.slow
def test_two_processes_cannot_work_on_one_run(tmp_path: Path) -> None:
    fedframe.run("fedavg", data="digits", clients=4, out=tmp_path / "run", **SMALL)
    (tmp_path / "run" / "summary.json").unlink()
    with RunFolder(tmp_path / "run").alone(), pytest.raises(RunError, match="Another process is working on"):
        fedframe.resume(tmp_path / "run", progress=False)
    assert fedframe.resume(tmp_path / "run", progress=False).scores["generic"]["last"] is not None


@pytest.mark.slow
def test_validation_scores_are_never_called_test_scores(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data="digits", clients=4, validate_share=0.2, out=tmp_path / "run", **SMALL)
    for score in ("generic", "client", "personal"):
        text = result.summary["definitions"][score]
        assert "validation; all test data were put aside" in text
        assert "test set" not in text


def test_adam_starts_from_a_rate_that_suits_it() -> None:
    assert gather({"optimizer": "adam"}, None).lr == 0.001
    assert gather({"optimizer": "adam", "lr": 0.01}, None).lr == 0.01
    assert gather({}, None).lr == 0.1
    brought = gather({"method": "fedetf", "optimizer": "adamw"}, None)  # the recipe brings SGD's settings
    assert (brought.lr, brought.momentum) == (0.001, 0.0)
    assert gather({"method": "fedetf"}, None).momentum == 0.9


@pytest.mark.slow
def test_data_and_net_from_python_run_and_resume(tmp_path: Path) -> None:
    net = torch.nn.Linear(5, 4)
    given: dict[str, Any] = {"data": blobs(), "model": net}
    result = fedframe.run("fedavg", partition="user", out=tmp_path / "run", **given, **SMALL)
    assert len(result.model.predict(torch.randn(3, 5))) == 3
    with pytest.raises(SettingError, match="came from Python"):
        fedframe.resume(tmp_path / "run", progress=False)
    assert fedframe.resume(tmp_path / "run", progress=False, **given).scores == result.scores


@pytest.mark.slow
def test_accuracy_of_zero_is_a_score_like_any_other(tmp_path: Path) -> None:
    data = blobs()
    data["y_test"] = np.full_like(data["y_test"], 7)  # a class that nobody can know
    result = fedframe.run("fedavg", data=data, model="mlp", out=tmp_path / "run", **SMALL)
    assert [line["generic"] for line in result.history] == [0.0, 0.0, 0.0]
    generic = result.scores["generic"]
    assert {generic[key] for key in ("last", "last_five", "final", "low")} == {0.0}
    assert 0 < float(generic["high"] or 0) < 0.1  # none right of 60 is no proof that none ever will be


@pytest.mark.slow
def test_every_key_of_the_scores_is_defined(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data=blobs(), model="mlp", out=tmp_path / "run", **SMALL)
    keys = {key for score in result.scores.values() for key in score} | set(result.scores)
    assert keys <= set(result.summary["definitions"])


@pytest.mark.slow
@pytest.mark.parametrize("line", ['{"round": 1, "loss": 1.0, "seconds": 1}\n', '{"round": 1, "lo'])
def test_run_that_was_cut_off_before_its_first_checkpoint_starts_over_cleanly(tmp_path: Path, line: str) -> None:
    whole = fedframe.run("fedavg", data="digits", clients=4, out=tmp_path / "whole", **SMALL)
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.yaml").write_bytes((tmp_path / "whole" / "config.yaml").read_bytes())
    (cut / "metrics.jsonl").write_text(line)
    resumed = fedframe.resume(cut, progress=False)
    assert [entry["round"] for entry in resumed.history] == [1, 2, 3]
    assert resumed.scores == whole.scores


@pytest.mark.slow
def test_resume_notices_that_the_data_have_changed(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **blobs())
    fedframe.run("fedavg", data=f"npz:{path}", model="mlp", out=tmp_path / "run", **SMALL)
    (tmp_path / "run" / "summary.json").unlink()
    np.savez(path, **blobs(seed=1))
    with pytest.raises(DataError, match=r"data\.npz changed since .* was begun"):
        fedframe.resume(tmp_path / "run", progress=False)
    with pytest.raises(DataError, match="have changed since round 3"):
        fedframe.resume(tmp_path / "run", changed_code=True, progress=False)


@pytest.mark.slow
def test_model_predicts_from_arrays_of_the_usual_shapes(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data="digits", clients=4, out=tmp_path / "run", **SMALL)
    images = np.random.default_rng(0).integers(0, 17, (3, 8, 8), dtype=np.uint8)
    assert result.model.predict(images) == result.model.predict(torch.from_numpy(images)[..., None])
    with pytest.raises(DataError, match=r"shape \(9, 9, 1\), but the model takes \(8, 8, 1\)"):
        result.model.predict(np.zeros((1, 9, 9)))


@pytest.mark.slow
def test_uniform_weighting_of_equal_clients_is_the_sample_weighting(tmp_path: Path) -> None:
    for weighting in ("samples", "uniform"):
        fedframe.run(
            "fedavg",
            data=blobs(),
            model="mlp",
            weighting=weighting,
            local_test=0.0,
            personal=False,
            out=tmp_path / weighting,
            **SMALL,
        )
    assert same_file(tmp_path / "samples" / "model.safetensors", tmp_path / "uniform" / "model.safetensors")


@pytest.mark.slow
def test_private_state_is_kept_per_client_and_notes_are_logged(tmp_path: Path) -> None:
    recorder = Recorder()
    settings = {**SMALL, "progress": recorder}
    fedframe.run(
        "fedavg",
        data=blobs(),
        model="mlp",
        keep_optimizer=True,
        momentum=0.9,
        out=tmp_path / "run",
        **settings,
    )
    files = sorted((tmp_path / "run" / "clients").rglob("*.safetensors"))
    assert len({path.parent for path in files}) == 4
    tensors, _ = read_tensors(files[0])
    assert any(name.endswith("momentum_buffer") for name in tensors)
    assert recorder.rounds == [1, 2, 3]
