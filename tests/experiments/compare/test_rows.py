"""Methods with settings and candidates of their own, from texts and mappings."""

from __future__ import annotations

from typing import Any

import pytest

from fedframe.errors import SettingError
from fedframe.experiments.compare.address import Address
from fedframe.experiments.compare.request import ComparisonRequest, make_plan
from fedframe.experiments.compare.rows import read_rows, read_sweep


def test_text_gives_settings_of_the_run_and_of_parts() -> None:
    (row,) = read_rows(["fedprox?lr=0.1&prox.mu=0.01&label=Prox"], {})
    assert (row.method, row.label) == ("fedprox", "Prox")
    assert row.settings == {"lr": 0.1, "set": {"prox": {"mu": 0.01}}}
    assert [str(candidate) for candidate in row.candidates] == [""]


def test_mapping_says_the_same_as_the_text() -> None:
    text, mapping, nested = read_rows(
        [
            "fedprox?lr=0.1&prox.mu=0.01&label=a",
            {"method": "fedprox", "lr": 0.1, "prox.mu": 0.01, "label": "b"},
            {"method": "fedprox", "lr": 0.1, "set": {"prox": {"mu": 0.01}}, "label": "c"},
        ],
        {},
    )
    assert text.settings == mapping.settings == nested.settings


def test_label_tells_what_differs() -> None:
    assert [row.label for row in read_rows(["fedavg", "fedavg?lr=0.5"], {})] == ["fedavg", "fedavg lr=0.5"]


def test_sweep_is_for_all_that_have_the_setting_and_own_candidates_win() -> None:
    rows = read_rows(
        ["fedavg", "fedprox", "fedavg?lr=[1,2,3]&label=own", "fedprox?lr=0.5"], {"lr": [0.1, 0.2], "prox.mu": [1, 2]}
    )
    assert [len(row.candidates) for row in rows] == [2, 4, 3, 2]
    assert [str(candidate) for candidate in rows[1].candidates] == [
        "lr=0.1 prox.mu=1",
        "lr=0.1 prox.mu=2",
        "lr=0.2 prox.mu=1",
        "lr=0.2 prox.mu=2",
    ]
    assert rows[1].candidates[2].settings == {"lr": 0.2, "set": {"prox": {"mu": 1}}}
    assert rows[3].settings == {"lr": 0.5}
    assert [*rows[3].sweep] == [Address("mu", "prox")]


def test_bare_name_stands_for_the_only_part_that_has_it() -> None:
    (row,) = read_rows(["fedprox"], {"mu": [0.1, 1.0]})
    assert [*row.sweep] == [Address("mu", "prox")]


def test_sweep_is_read_from_text_with_commas_or_as_a_list() -> None:
    assert read_sweep("lr=0.01,0.1") == ("lr", [0.01, 0.1])
    schedule = read_sweep('lr_schedule=[cosine, "step:0.1@0.5,0.75"]')
    assert schedule == ("lr_schedule", ["cosine", "step:0.1@0.5,0.75"])
    assert read_sweep("nesterov=true,false") == ("nesterov", [True, False])


@pytest.mark.parametrize(
    ("methods", "sweeps", "sentence"),
    [
        ([], {}, "nothing to compare"),
        (["fedavh"], {}, "did you mean 'fedavg'"),
        (["fedavg", "fedavg"], {}, "Two methods are called 'fedavg'"),
        (["fedavg?lr"], {}, "fedprox\\?lr=0.1&prox.mu=0.01"),
        (["fedavg?rounds=3"], {}, "rounds is the same for all methods"),
        (["fedavg?seed=3"], {}, "seed is the same for all methods"),
        (["fedavg"], {"partition": ["iid"]}, "give it once, as --partition"),
        (["fedavg"], {"prox.mu": [1]}, "none of fedavg has a part 'prox'"),
        (["fedprox"], {"prox.nu": [1]}, "no setting 'nu'; choose one of: mu"),
        (["fedavg"], {"learning": [1]}, "No method here has a setting 'learning'"),
        (["fedprox"], {"lr": [1], "prox.mu": [1], "momentum": [0]}, "one or two settings"),
        (["fedavg"], {"lr": []}, "has no values"),
        (["fedavg"], {"lr": [[1]]}, "list inside a list"),
        (["fedavg?lr=[1"], {}, "is no value"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(methods: list[Any], sweeps: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        read_rows(methods, sweeps)


@pytest.mark.parametrize("text", ["lr", "lr=", "=0.1"])
def test_sweep_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(SettingError, match=r"write it as --sweep lr=0\.01,0\.1"):
        read_sweep(text)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (ComparisonRequest(["fedavg"], baseline="fedprox"), "baseline = 'fedprox' is not compared"),
        (ComparisonRequest(["fedavg"], target=80), "use target = 0.8 for 80 %"),
        (ComparisonRequest(["fedavg"], seeds=0), "use seeds = 5"),
        (ComparisonRequest(["fedavg"], seeds=[1, 1]), "none twice"),
        (ComparisonRequest(["fedavg"], select="generic.final"), "are for sweeps"),
        (
            ComparisonRequest(["fedavg"], sweep={"lr": [1, 2]}, select="generic.best"),
            "There is no score 'generic.best'",
        ),
        (ComparisonRequest(["fedavg"], sweep={"lr": [1, 2]}, select="cpu_seconds"), "is no accuracy"),
        (ComparisonRequest(["fedavg"], sweep={"lr": [1, 2]}, tuning_seeds=4), "from 1 to the 3 seeds"),
        (
            ComparisonRequest(["fedavg"], sweep={"lr": [1, 2]}, settings={"validate_share": 0}),
            "use validate_share = 0.2",
        ),
        (ComparisonRequest(["fedavg"], settings={"set": {"prox": {"mu": 1}}}), "no method here has a part 'prox'"),
        (ComparisonRequest(["fedavg"], settings={"round": 1}), "did you mean 'rounds'"),
        (ComparisonRequest(["fedavg", "fedprox?prox.mu=-1"]), "prox.mu = -1"),
        (ComparisonRequest(["fedavg"], sweep={"lr": [0.1, -1]}), "lr = -1"),
        (ComparisonRequest(["fedavg"], settings={"seed": "x"}), "seed = 'x' is no whole number"),
    ],
)
def test_mistakes_are_found_before_anything_runs(request_: ComparisonRequest, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_plan(request_)


def test_same_question_has_the_same_folder_and_more_seeds_join_it() -> None:
    plan = make_plan(ComparisonRequest(["fedavg", "fedprox"], seeds=2, settings={"rounds": 3}))
    assert plan.out == make_plan(ComparisonRequest(["fedavg", "fedprox"], seeds=5, settings={"rounds": 3})).out
    assert plan.out != make_plan(ComparisonRequest(["fedavg", "fedprox"], seeds=2, settings={"rounds": 4})).out
    assert plan.out != make_plan(ComparisonRequest(["fedavg", "fedprox?lr=0.3"], seeds=2, settings={"rounds": 3})).out
    assert make_plan(ComparisonRequest(["fedavg"], seeds=2, settings={"seed": "4"})).seeds == (4, 5)


def test_settings_of_parts_reach_the_methods_that_have_them() -> None:
    plan = make_plan(ComparisonRequest(["fedavg", "fedprox"], settings={"set": {"prox": {"mu": 0.5}}}))
    fedavg, fedprox = (plan.settings_of(row, row.candidates[0], 0).set for row in plan.rows)
    assert (fedavg, fedprox) == ({}, {"prox": {"mu": 0.5}})


def test_file_names_methods_and_sweep_and_given_settings_beat_it(tmp_path: Any) -> None:
    (tmp_path / "c.yaml").write_text(
        "rounds: 5\nlr: 0.3\nsweep: {momentum: [0, 0.9]}\nmethods:\n  - fedavg\n  - {method: fedprox, prox.mu: 0.5}\n"
    )
    plan = make_plan(ComparisonRequest(config=tmp_path / "c.yaml", settings={"rounds": 7}))
    assert [row.label for row in plan.rows] == ["fedavg", "fedprox prox.mu=0.5"]
    settings = plan.settings_of(plan.rows[0], plan.rows[0].candidates[1], 0)
    assert (settings.rounds, settings.lr, settings.momentum) == (7, 0.3, 0.9)
