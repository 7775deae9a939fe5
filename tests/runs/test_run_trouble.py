"""How a run ends that cannot go on, or should not have: one sentence, and nothing that was finished is lost."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedframe
from fedframe.errors import DataError, RunError, SettingError
from tests.helpers import blobs, same_file

SMALL: dict[str, Any] = {"rounds": 3, "epochs": 1, "workers": 1, "progress": False}


def test_learning_rate_that_explodes_ends_with_a_hint_and_keeps_finished_rounds(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="smaller lr"):
        fedframe.run("fedavg", data="digits", clients=4, lr=1e30, out=tmp_path / "run", **SMALL)
    assert (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.slow
def test_shared_model_that_has_lost_what_it_had_learned_is_named(tmp_path: Path) -> None:
    """All weights zero after the third round: finite, and worth nothing."""
    ruin = tmp_path / "ruin.py"
    ruin.write_text(RUIN)
    fedframe.run(f"fedavg+{ruin}:Ruin", out=tmp_path / "bad", **{**SMALL, "rounds": 3})
    log = (tmp_path / "bad" / "log.txt").read_text()
    falls = r"accuracy of the shared model was \d\d\.\d % after round 2 and \d+\.\d % after round 3"
    assert re.search(f"{falls}: the training went wrong", log)
    fedframe.run(f"fedavg+{ruin}:Ruin", out=tmp_path / "good", **{**SMALL, "rounds": 2})
    log_of_good = tmp_path / "good" / "log.txt"
    assert not log_of_good.exists() or "went wrong" not in log_of_good.read_text()


RUIN = """
from dataclasses import dataclass
from typing import ClassVar

from fedframe import Part


@dataclass(frozen=True)
class Ruin(Part):
    name: ClassVar[str] = "ruin"

    def after_merge(self, server, accepted):
        if server.round == 2:
            server.model.zero_()
"""


@pytest.mark.slow
def test_class_without_a_training_sample_does_no_harm(tmp_path: Path) -> None:
    data = blobs()
    data["y_test"][:5] = 7  # seen in no training sample
    result = fedframe.run("fedavg", data=data, model="mlp", out=tmp_path / "run", **SMALL)
    assert list(result.summary["per_class"]) == ["0", "1", "2", "7"]
    assert result.summary["per_class"]["7"] is not None
    assert np.isfinite(result.history[-1]["loss"])


def test_truncated_data_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    np.savez(path, **blobs())
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"cut\.npz is damaged or cut short"):
        fedframe.run("fedavg", data=f"npz:{path}", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_full_disk_ends_with_a_sentence_and_the_run_can_go_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import resource, fedframe, sys\n"
        "from fedframe.errors import RunError\n"
        "from fedframe.runs.progress import Display\n"
        "class Full(Display):\n"
        "    def round(self, record):\n"
        "        if record.round == 2:  # from now on files cannot grow beyond 1,000 bytes\n"
        "            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    fedframe.run('fedavg', data='digits', clients=4, rounds=4, workers=1, out=sys.argv[1], progress=Full())\n"
        "except RunError as error:\n"
        "    print(error)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, script, tmp_path / "cut"], capture_output=True, text=True, check=True)
    assert "Could not write" in done.stdout
    assert "File too large" in done.stdout
    assert not [path for path in (tmp_path / "cut").iterdir() if path.name.endswith(".part")]
    fedframe.resume(tmp_path / "cut", progress=False)
    fedframe.run("fedavg", data="digits", clients=4, rounds=4, workers=1, out=tmp_path / "whole", progress=False)
    assert same_file(tmp_path / "whole" / "model.safetensors", tmp_path / "cut" / "model.safetensors")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rouds": 3}, "There is no setting 'rouds'; did you mean 'rounds'?"),
        ({"rounds": -1}, r"rounds = -1: should be greater than or equal to 0; the default is 30"),
        ({"lr": "fast"}, r"lr = 'fast': .*number.*the default is 0.1"),
        ({"participation": 2}, r"participation = 2: .*less than or equal to 1"),
        ({"local_test": "none"}, r"local_test = 'none'"),
        ({"method": "fedavh"}, "There is no method 'fedavh'; did you mean 'fedavg'?"),
        ({"data": "digit"}, "did you mean 'digits'"),
        ({"model": "resnet81"}, "did you mean 'resnet18'"),
        ({"partition": "dirichle:0.1"}, "dirichlet"),
        ({"augment": "flop"}, "did you mean 'flip'"),
        ({"device": "tpu"}, "device = 'tpu'.*use cpu"),
        ({"set": {"fine_tune": {"epoch": 1}}}, "did you mean 'epochs'"),
        ({"set": {"fine_tune": {"epochs": -1}}}, r"fine_tune.epochs = -1.*the default is 5"),
        ({"set": {"fine_tun": {}}}, "did you mean 'fine_tune'"),
        ({"set": {"fine_tune": {"name": "x"}}}, "has no setting 'name'"),
        ({"optimizer": "adam", "momentum": 0.9}, "leave them out with adam"),
        ({"nesterov": True}, "nesterov needs momentum; add momentum = 0.9"),
        ({"set": ["a"]}, "set = .* cannot be read; write set: {fine_tune: {epochs: 3}}"),
        ({"set": {"fine_tune": 3}}, "cannot be read; write set"),
        ({"lr": float("inf")}, "lr = inf: should be a finite number"),
        ({"lr_schedule": "exponential:0.9,0.8"}, "lr_schedule"),
        ({"model": "resnet20", "batch": 1}, "batch = 1 cannot train a net with BatchNorm; use batch = 2"),
    ],
)
def test_wrong_setting_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence) as caught:
        fedframe.run(**{"method": "fedavg", "data": "digits", "out": tmp_path / "run", **wrong})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
