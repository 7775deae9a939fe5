"""The pages of results say what the JSON files say, and verdicts follow the rule that the page states."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from benchmarks.adopt import tidy
from benchmarks.pages import OLDER, page_texts
from benchmarks.tables import TABLES, TITLES, method_of
from benchmarks.verdicts import EXPLAINED, NEAR, NOT_SHOWN, SHOWN, Claim, judge, read_claims, read_records, section
from fedframe.experiments.bench.rows import bench_rows
from fedframe.experiments.bench.scene import load_scene, scene_names
from fedframe.methods.recipes import recipe_defaults

FAIR = {"lr_schedule", "weight_decay", "clip", "momentum", "batch", "epochs", "rounds"}  # the same for all, or no row


def test_pages_are_as_they_are_written_from_the_json_files() -> None:
    stale = [path.name for path, text in page_texts() if path.read_text() != text]
    assert not stale, "run: python -m benchmarks.pages"


# -- claims ------------------------------------------------------------------------------------------------------------
def test_every_scene_has_claims_about_rows_and_controls_that_it_has() -> None:
    claims = read_claims()
    assert {*claims} == {*scene_names()}
    for scene, about in claims.items():
        found = bench_rows(load_scene(scene))[0]
        labels = {each.row.label for each in found}
        wanted = {name for claim in about["claims"] for name in (claim.row, claim.over, *claim.rivals)}
        assert wanted <= labels, scene
        assert {each.row.label for each in found if not each.control} <= wanted | UNCLAIMED, scene


# Rows that a claim of a paper is not about: rivals, parts, and steps between two rows that are compared.
UNCLAIMED = {
    "fedprox", "scaffold", "fedadam", "fedavg+ccvr", "fedbabu", "frozen orthonormal classifier alone", "fedrod", "moon",
    "spherefed",
}  # fmt: skip


def scores(**rows: list[float]) -> Mapping[str, Mapping[str, list[float | None]]]:
    return {name.replace("_", "+"): {"generic.final": [*values]} for name, values in rows.items()}


@pytest.mark.parametrize(
    ("control", "word"),
    [
        ([0.51, 0.60, 0.69], SHOWN),
        ([0.80, 0.91, 0.99], EXPLAINED),  # ahead of the row
        ([0.70, 0.81, 0.89], EXPLAINED),  # level with it
        ([0.60, 0.85, 0.90], NEAR),
    ],
)
def test_gain_is_shown_unless_a_control_is_as_good_or_too_near(control: list[float], word: str) -> None:
    values = scores(fedavg=[0.5, 0.6, 0.7], mine=[0.70, 0.81, 0.89], fedavg_ffc=control)
    verdict = judge(Claim("better", "mine"), values)
    assert verdict.word == word
    assert verdict.control == ("" if word == SHOWN else "fedavg+ffc")
    assert verdict.difference.mean == pytest.approx(0.2)
    # The same gain is shown where nobody asks about that control.
    assert judge(Claim("better", "mine", controls=()), values).word == SHOWN


@pytest.mark.parametrize(
    ("ours", "remark"),
    [([0.5, 0.7, 0.6], ""), ([0.3, 0.41, 0.5], "the interval lies below 0"), ([], "mine has no such score")],
)
def test_difference_whose_interval_is_not_above_0_is_not_shown(ours: list[float], remark: str) -> None:
    verdict = judge(Claim("better", "mine"), scores(fedavg=[0.5, 0.6, 0.7], mine=ours))
    assert (verdict.word, verdict.remark) == (NOT_SHOWN, remark)


def test_part_that_adds_to_another_has_no_controls_and_personal_models_have_one_more() -> None:
    assert Claim("adds", "a+b", over="a").rivals == ()
    assert {*Claim("p", "a", score="personal.final").rivals} - {*Claim("g", "a").rivals} == {"local"}


def test_section_names_what_a_scene_has_of_its_paper_and_what_was_not_run() -> None:
    about, record = read_claims()["huang"], read_records()["quick"]
    assert "**Not run yet**" in section("huang", about, None)[-1]
    cases = {"two classes": record["results"][""]}
    lines = section("huang", about, {**record, "results": cases})
    assert "Not run yet: five classes." in lines
    assert any(line.startswith("A subset: 20 %") for line in lines)


# -- older tables ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", TABLES)
def test_older_tables_have_no_method_with_a_schedule_of_its_own(name: str) -> None:
    fixed = {*TABLES[name].common}
    for row in TABLES[name].methods:
        assert not ({*recipe_defaults(method_of(row))} - fixed) & FAIR, row


@pytest.mark.parametrize("name", TITLES)
def test_files_of_older_tables_hold_the_rows_of_their_scripts(name: str) -> None:
    rows = {row["method"] for row in json.loads((OLDER / f"{name}.json").read_text())}
    assert any(rows == {*table.methods} for table in TABLES.values())


# -- taking results over ----------------------------------------------------------------------------------------------
def test_adopted_result_names_no_folder_of_its_machine() -> None:
    command = (
        "fedframe bench huang --cases 'two classes' --cores 4 --data-dir /home/me/sets --out /tmp/out --cells a.zip"
    )
    run = "../../somebody/runs/huang/runs/fedavg-1/seed-0"
    methods = [{"runs": [run], "reasons": ["/home/me/sets/x is damaged"]}]
    record = {"command": command, "results": {"": {"command": command, "methods": methods}}, "cpu_hours": 1.5}
    found = tidy(record)
    said = "fedframe bench huang --cases 'two classes' --data-dir data/ --out docs/results/bench"
    assert (found["command"], found["results"][""]["command"]) == (said, said)
    assert found["results"][""]["methods"] == [{"runs": ["runs/fedavg-1/seed-0"], "reasons": ["data/x is damaged"]}]
    assert found["cpu_hours"] == 1.5
    assert tidy(found) == found
