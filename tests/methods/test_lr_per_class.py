"""A learning rate per class: resolved by the data, shown as the number that was used, and beaten by a plain `lr`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import fedframe
from fedframe.cli import app
from fedframe.errors import SettingError
from fedframe.jobs.gather import gather
from fedframe.methods.recipes import recipe_defaults
from fedframe.settings import check, merge_settings
from tests.helpers import blobs, make_job


@pytest.mark.parametrize(("classes", "lr"), [(3, 0.15), (10, 0.5), (20, 1.0)])
def test_spherefeds_learning_rate_is_a_twentieth_of_the_classes(tmp_path: Path, classes: int, lr: float) -> None:
    job = make_job(tmp_path, blobs(each=40, classes=classes), "mlp:32", method="spherefed")
    assert job.settings.lr == pytest.approx(lr, rel=1e-12)
    assert job.settings.lr_per_class is None


def test_ten_classes_keep_the_rate_that_they_had(tmp_path: Path) -> None:
    assert make_job(tmp_path, blobs(each=40, classes=10), "mlp:32", method="spherefed").settings.lr == 0.5


@pytest.mark.slow
def test_config_has_the_number_that_was_used_and_gives_the_same_run(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data": blobs(),
        "partition": "user",
        "rounds": 1,
        "workers": 1,
        "progress": False,
        "model": "mlp:8",
    }
    first = fedframe.run("fedprox+spherefed", out=tmp_path / "first", **given)
    config = yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())
    assert (config["lr"], config["lr_per_class"]) == (pytest.approx(0.15), None)
    again = fedframe.run(
        config=tmp_path / "first" / "config.yaml", data=blobs(), out=tmp_path / "again", progress=False
    )
    assert again.history[0]["loss"] == first.history[0]["loss"]
    assert again.history[0]["lr"] == first.history[0]["lr"]


def test_a_plain_lr_takes_its_place_wherever_it_comes_from(tmp_path: Path) -> None:
    assert gather({"method": "spherefed", "lr": 0.3}, None).lr_per_class is None
    (tmp_path / "file.yaml").write_text("lr: 0.2\n")
    found = gather({"method": "spherefed"}, tmp_path / "file.yaml")
    assert (found.lr, found.lr_per_class) == (0.2, None)
    assert recipe_defaults("spherefed+fedetf")["lr"] == 0.04
    assert "lr_per_class" not in recipe_defaults("spherefed+fedetf")
    assert "lr" not in recipe_defaults("fedetf+spherefed")
    assert merge_settings({"lr": 1.0}, {"lr_per_class": None}) == {"lr": 1.0, "lr_per_class": None}
    assert gather({"method": "spherefed", "optimizer": "adam"}, None).lr_per_class is None


def test_settings_that_are_written_before_the_data_are_known_come_back(tmp_path: Path) -> None:
    settings = gather({"method": "spherefed"}, None)
    assert settings.lr_per_class == 0.05
    assert check(settings.model_dump(mode="json")) == settings


def test_two_learning_rates_at_once_are_refused() -> None:
    with pytest.raises(SettingError, match=r"lr = 0.1 and lr_per_class = 0.05 both give the learning rate"):
        gather({"method": "fedavg", "lr": 0.1, "lr_per_class": 0.05}, None)


def test_parts_are_asked_about_the_rate_that_is_used(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"too strong a pull for lr = 2"):
        make_job(tmp_path, blobs(), method="ditto", lr_per_class=2 / 3 + 1e-9, set={"ditto": {"lam": 1.0}})


def test_show_has_the_rule() -> None:
    assert "lr_per_class=0.05" in CliRunner().invoke(app, ["show", "spherefed"]).output.replace("\n", "")
