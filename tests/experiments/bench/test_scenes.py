"""Every row has the scene's schedule, decay, clipping, epochs, batch and rounds, whatever its recipe brings."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedframe.errors import SettingError
from fedframe.experiments.bench.cost import planned_rounds
from fedframe.experiments.bench.rows import UNTRAINED, bench_rows
from fedframe.experiments.bench.run import Bench, Prepared, prepare
from fedframe.experiments.bench.scene import NAMED, TuningSpec, load_scene, read_scene, scene_names
from fedframe.experiments.bench.search import of_rate
from fedframe.experiments.compare.address import METHOD_SETTINGS
from fedframe.methods.recipes import RECIPES, recipe_defaults
from fedframe.methods.tuning import exists
from fedframe.settings import Settings

SETTINGS: dict[str, Any] = {
    "data": "digits", "model": "mlp:8", "clients": 5, "rounds": 4, "epochs": 2, "batch": 17,
    "lr_schedule": "exponential:0.9", "momentum": 0.3, "weight_decay": 0.002, "clip": 7.0,
}  # fmt: skip
# Some controls differ, and their labels or reasons say so; nothing else may.
ALLOWED = {
    "fedavg, rate cut": {"lr_schedule"},
    "untrained + ffc": {*UNTRAINED},
    "analytic": {"lr", "rounds", "model"},  # has no rounds, and features of its own
    "central": {"steps"},
}


def scene_file(folder: Path, **changes: Any) -> str:
    content = {"title": "a test", "settings": SETTINGS, "rows": ["fedprox"], **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def run_settings(ready: Prepared) -> list[dict[str, dict[str, Any]]]:
    """By case and label: the settings of the run that decide on how long and how it trains."""
    names = [*METHOD_SETTINGS, "rounds", "participation", "model", "clients", "data_share", "eval_every"]
    return [
        {
            row.label: {
                name: getattr(plan.settings_of(row, of_rate(0.1) if each.tuned else of_rate(UNTRAINED["lr"]), 0), name)
                for name in names
            }
            for each, row in zip(ready.rows, plan.rows, strict=True)
        }
        for plan in ready.plans
    ]


def differing(ready: Prepared) -> dict[str, set[str]]:
    """By label: the settings that are not the baseline's."""
    found: dict[str, set[str]] = {}
    for case in run_settings(ready):
        baseline = case["fedavg"]
        for label, values in case.items():
            names = {name for name, value in values.items() if value != baseline[name]}
            found[label] = found.get(label, set()) | names
    return {label: names for label, names in found.items() if names}


@pytest.mark.slow
@pytest.mark.parametrize("name", scene_names())
def test_rows_of_every_scene_that_comes_along_are_trained_alike(name: str) -> None:
    found = differing(prepare(Bench(name)))
    assert all(names <= ALLOWED.get(label, set()) for label, names in found.items()), found


@pytest.mark.slow
def test_no_default_of_any_recipe_reaches_a_row(tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 12}  # fedrep needs more than one
    ready = prepare(Bench(scene_file(tmp_path, settings=settings, rows=[*RECIPES])))
    assert {*differing(ready)} <= {*ALLOWED}
    of_all = run_settings(ready)[0]
    brought = {name for recipe in RECIPES for name in recipe_defaults(recipe)} - {"lr"}
    assert {
        "batch",
        "epochs",
        "lr_schedule",
        "momentum",
        "weight_decay",
        "clip",
    } <= brought  # so there is what could leak
    for label in ("spherefed", "fedloge", "feddyn", "fedavg_etf"):
        assert {name: of_all[label][name] for name in NAMED} == {name: settings[name] for name in NAMED}


def test_what_a_scene_leaves_out_is_the_default_of_fedframe_and_not_of_a_recipe(tmp_path: Path) -> None:
    problem = load_scene(scene_file(tmp_path)).problem("")
    for name in METHOD_SETTINGS:
        if name not in (*SETTINGS, "lr"):
            assert problem[name] == Settings.model_fields[name].default


@pytest.mark.slow
@pytest.mark.parametrize("row", ["fedprox?lr=0.1", "fedprox?lr_schedule=cosine", {"method": "moon", "batch": 8}])
def test_row_with_a_run_setting_of_its_own_is_refused(tmp_path: Path, row: Any) -> None:
    with pytest.raises(SettingError, match="is the same for all rows of a bench"):
        prepare(Bench(scene_file(tmp_path, rows=[row])))


@pytest.mark.parametrize("name", NAMED)
def test_scene_must_name_what_recipes_bring(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match=rf"mine\.yaml: settings: {name} must be named"):
        load_scene(scene_file(tmp_path, settings={key: value for key, value in SETTINGS.items() if key != name}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": {**SETTINGS, "lr": 0.1}}, "'lr' does not belong"),
        ({"settings": {**SETTINGS, "bach": 8}}, "did you mean 'batch'"),
        ({"cases": {"a": {"rounds": 3}}}, "rounds is the same in all of a scene"),
        ({"tuning": {"rates": [0.1, 0.2]}}, "at least 5 in rising order"),
        ({"tuning": {"rates": [0.1, 0.2, 0.3, 0.2, 0.5]}}, "at least 5 in rising order"),
        ({"tuning": {"select": "cpu_seconds"}}, "is no accuracy"),
        ({"tuning": {"seeds": 4}}, "at most the 3 seeds"),
        ({"seeds": 2}, "greater than or equal to 3"),
        ({"rate_cut": "sometimes"}, "lr_schedule = 'sometimes' is not known"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_mistake_in_a_scene_is_one_sentence_with_the_file(tmp_path: Path, changes: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=r"mine\.yaml") as error:
        load_scene(scene_file(tmp_path, **changes))
    assert sentence in str(error.value)


@pytest.mark.slow
def test_controls_are_in_every_table_and_can_be_left_out(tmp_path: Path) -> None:
    scene = load_scene(scene_file(tmp_path))
    labels = [each.row.label for each in bench_rows(scene)[0]]
    assert labels[:2] == ["fedavg", "fedprox"]
    assert {"fedavg, rate cut", "fedavg+ffc", "fedavg+balanced_ce", "untrained + ffc", "local", "central"} <= {*labels}
    bare, _ = bench_rows(scene, controls=False)
    assert [each.row.label for each in bare] == ["fedavg", "fedprox"]  # the baseline stays: all are compared with it


@pytest.mark.slow
def test_control_that_this_version_lacks_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fedframe.experiments.bench.rows.exists", lambda method: method != "central" and exists(method))
    rows, sentences = bench_rows(load_scene(scene_file(tmp_path)))
    assert "central" not in [each.row.label for each in rows]
    assert "The control central is left out: this version has no such method." in sentences


@pytest.mark.slow
def test_methods_choose_rows_or_add_their_own(tmp_path: Path) -> None:
    scene = load_scene(scene_file(tmp_path, rows=["fedprox", "moon", "scaffold+etf"]))

    def labels(*methods: str, rows: tuple[str, ...] = ()) -> list[str]:
        return [each.row.label for each in bench_rows(scene, methods, rows, controls=False)[0]]

    assert labels("moon") == ["fedavg", "moon"]
    assert labels("feddyn") == ["fedavg", "feddyn"]
    assert labels("moon", "fedprox?prox.mu=3") == ["fedavg", "moon", "fedprox prox.mu=3"]
    assert labels(rows=("*etf",)) == ["fedavg", "scaffold+etf"]
    assert labels("local") == ["fedavg", "local"]
    with pytest.raises(SettingError, match="There is no row 'x'"):
        labels(rows=("x",))


@pytest.mark.slow
def test_row_that_is_like_another_is_tuned_by_itself_where_that_is_not_run(tmp_path: Path) -> None:
    like = {"method": "fedprox", "prox.mu": 1, "label": "strong", "like": "fedprox"}
    scene = load_scene(scene_file(tmp_path, rows=["fedprox", like]))
    assert [each.like for each in bench_rows(scene, controls=False)[0]] == ["", "", "fedprox"]
    assert [each.like for each in bench_rows(scene, ["strong"], controls=False)[0]] == ["", ""]


@pytest.mark.slow
def test_pooled_training_sees_as_many_samples_as_the_drawn_clients(tmp_path: Path) -> None:
    ready = prepare(Bench(scene_file(tmp_path, settings={**SETTINGS, "participation": 0.4})))
    steps = {row.label: row.settings.get("steps") for row in ready.plans[0].rows}
    assert steps["central"] == round(1438 * 0.75 * 0.4 * 2 / 17)
    assert steps["fedprox"] is None


def test_scenes_hold_no_paths_of_a_machine() -> None:
    for name in scene_names():
        text = (files("fedframe.experiments.bench") / "scenes" / f"{name}.yaml").read_text()
        assert "/work" not in text
        assert "/home" not in text
        assert read_scene(name, text, name).title


@pytest.mark.slow
def test_data_folder_is_filled_in_from_data_dir(tmp_path: Path) -> None:
    ready = prepare(Bench("people", machine={"data_dir": str(tmp_path)}))
    assert ready.plans[0].settings["data"] == f"npz:{tmp_path}/mnist-writers.npz"


def test_rungs_of_halving_double_up_to_all_rounds() -> None:
    assert TuningSpec(mode="full").rungs(30) == [30]
    assert TuningSpec(mode="halving", start=0.1).rungs(100) == [10, 20, 40, 80, 100]
    assert TuningSpec(mode="halving", start=0.1).rungs(3) == [1, 2, 3]
    assert planned_rounds(TuningSpec(mode="full", refine=2), 9) == [9] * 7
    assert planned_rounds(TuningSpec(mode="halving", start=0.1), 100) == [10] * 5 + [20] * 3 + [40] * 2 + [40] * 2
