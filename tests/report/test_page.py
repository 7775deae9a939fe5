"""The page's data: read from run folders, complete, escaped, small; and what is missing is a sentence."""

from __future__ import annotations

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedframe.errors import DataError
from fedframe.report.page.build import SECTIONS, drop_runs_to_fit, make_page, page_data
from fedframe.report.page.curves import MOST_POINTS
from fedframe.report.page.runs import group_labels, open_runs
from fedframe.report.page.template import VENDOR, asset, digest, program, script_json
from tests.report.made import made_cases, made_comparison, made_run

EVIL = "</script><!-- <script> ]]> \u2028 & \" ' \ud800"


def section(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in data["sections"] if each["id"] == name)


def embedded(html: str) -> Any:
    """The data as a browser would read them: up to the first end tag of a script."""
    start = html.index('id="page-data">') + len('id="page-data">')
    return json.loads(html[start : html.index("</script>", start)])


class Tags(HTMLParser):
    """Counts the elements of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.addresses: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


# -- escaping ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@settings(deadline=None)
@given(
    st.recursive(
        st.text() | st.floats() | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_no_text_can_leave_the_script_element(value: Any) -> None:
    text = script_json(value)
    assert not re.search(r"[<>&\u2028\u2029]", text)
    text.encode()  # no lone surrogate is left
    assert same(json.loads(text), value)


def same(read: Any, written: Any) -> bool:
    """Equal but for numbers that JSON does not know, which become null."""
    if isinstance(written, float):
        return read is None if not math.isfinite(written) else bool(read == written)
    if isinstance(written, list):
        return len(read) == len(written) and all(map(same, read, written))
    if isinstance(written, dict):
        return read.keys() == written.keys() and all(same(read[key], written[key]) for key in written)
    return bool(read == written)


def test_names_from_the_data_stay_data(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", method="fedavg", classes=2, names=[EVIL, "b"], data=f"npz:{EVIL[:9]}.npz")
    html = make_page(open_runs([folder]))
    assert EVIL in section(embedded(html), "classes")["data"]["classes"]
    assert Tags(html).found.count("script") == 2 + len(VENDOR)
    assert "<title>fedavg on &lt;" in html or "<title>fedavg on" in html
    assert Tags(html).found.count("title") == 1


@pytest.mark.slow
def test_scripts_do_not_end_early_and_only_they_may_run(tmp_path: Path) -> None:
    html = make_page(open_runs([made_run(tmp_path / "run")]))
    scripts = [*map(asset, VENDOR), program()]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    for text in scripts:
        assert "</script" not in text.lower()
        assert f"'sha256-{digest(text)}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert "connect-src 'none'" in policy[1]
    assert all(link.startswith(("#", "data:")) for link in Tags(html).addresses)


def test_the_drawing_libraries_come_with_their_licences() -> None:
    for name in ("d3", "plot"):
        assert "Permission to use, copy, modify" in asset(f"vendor/LICENSE.{name}")


# -- reading -----------------------------------------------------------------------------------------------------------
def test_a_finished_run_fills_every_section(tmp_path: Path) -> None:
    data = page_data(open_runs([made_run(tmp_path / "run")]))
    assert [each["id"] for each in data["sections"] if "missing" in each] == []
    assert len(data["sections"]) == len(SECTIONS) - 2  # nothing to compare with, and no gain
    for each in data["sections"]:
        assert each["title"]
        assert len(each["read"]) > 40
    assert data["state"] == "finished"


@pytest.mark.parametrize(
    "absent",
    ["metrics.jsonl", "drift.jsonl", "summary.json", "client_scores.json", "examination.json"],
)
def test_a_missing_file_is_a_sentence_and_never_an_error(tmp_path: Path, absent: str) -> None:
    folder = made_run(tmp_path / "run")
    (folder / absent).unlink()
    data = page_data(open_runs([folder]))
    for each in data["sections"]:
        assert ("missing" in each) != bool(each.get("data")), each["id"]
        assert each.get("missing", "Ends.").rstrip(")").endswith((".", "run"))


def test_runs_whose_scores_by_client_are_gone_are_named(tmp_path: Path) -> None:
    """A deleted file looks like one that was never made; without a word there would seem to be two methods."""
    folder = made_comparison(tmp_path / "comparison")
    assert "Without" not in section(page_data(open_runs([folder])), "spread")["read"]
    (folder / "runs/fedprox/seed-0/client_scores.json").unlink()
    found = section(page_data(open_runs([folder])), "spread")
    assert found["read"].endswith(" Without client_scores.json: fedprox.")
    for panel in found["data"]["panels"]:
        assert [line["label"] for line in panel["series"]] == ["fedavg", "fedetf"]
    for method in ("fedavg", "fedetf"):
        (folder / f"runs/{method}/seed-0/client_scores.json").unlink()
    assert "client_scores.json" in section(page_data(open_runs([folder])), "spread")["missing"]


def test_a_run_before_its_first_round_has_a_page(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    for path in folder.iterdir():
        if path.name != "config.yaml":
            path.unlink()
    data = page_data(open_runs([folder]))
    assert data["state"] == "round 0 of 8"
    assert [each["id"] for each in data["sections"] if "missing" not in each] == ["about"]


def test_scores_of_a_run_that_goes_on_are_those_of_its_last_rounds(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    (folder / "summary.json").unlink()
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (group,) = section(page_data(open_runs([folder])), "scores")["data"]["groups"]
    assert set(group["scores"]) == {"generic", "client"}
    for score, kinds in group["scores"].items():
        values = [line[score] for line in metrics]
        assert {kind: entry["mean"] for kind, entry in kinds.items()} == {
            "final": pytest.approx(values[-1], abs=1e-4),
            "last_five": pytest.approx(np.mean(values[-5:]), abs=1e-4),
        }


def test_a_method_without_a_shared_model_has_a_page(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", method="fedper")
    known = json.loads((folder / "examination.json").read_text())
    empty = dict.fromkeys(("confusion", "per_class", "groups", "ece", "gram", "collapse", "degeneration", "embedding"))
    (folder / "examination.json").write_text(json.dumps({**known, **empty}))
    summary = json.loads((folder / "summary.json").read_text())
    summary["scores"]["generic"] = {"last": None, "last_five": None, "final": None}
    summary["personal_per_class"], summary["per_class"] = summary["per_class"], {}
    (folder / "summary.json").write_text(json.dumps(summary))
    data = page_data(open_runs([folder]))
    assert [one["key"] for one in section(data, "classes")["data"]["models"]] == ["personal_per_class"]
    assert "generic" not in section(data, "scores")["data"]["groups"][0]["scores"]
    assert section(data, "gram")["missing"]


def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run folder"):
        open_runs([tmp_path])


def test_numbers_that_are_not_finite_become_gaps(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", rounds=3)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace('"loss": ', '"loss": NaN, "was": ')
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    panels = section(embedded(make_page(open_runs([folder]))), "curves")["data"]["panels"]
    loss = next(panel for panel in panels if panel["key"] == "loss")
    assert [point[0] for point in loss["series"][0]["points"]] == [1, 3]


# -- several runs ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_runs_that_differ_in_the_seed_alone_are_one_line_with_a_band(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / str(seed), seed=seed) for seed in range(3)]
    data = page_data(open_runs(folders))
    line = section(data, "curves")["data"]["panels"][0]["series"][0]
    metrics = [[json.loads(text) for text in (path / "metrics.jsonl").read_text().splitlines()] for path in folders]
    for i, (round, seconds, megabytes, mean, low, high) in enumerate(line["points"]):
        values = [lines[i]["generic"] for lines in metrics]
        expected = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        assert (round, seconds, megabytes) == (i + 1, pytest.approx(0.2 * (i + 1)), pytest.approx(2.0 * (i + 1)))
        assert mean == pytest.approx(np.mean(values), rel=1e-4)
        assert (low, high) == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_the_same_run_made_twice_is_no_second_seed(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 1), ("c", 0))]
    first, second = open_runs(folders).groups
    assert [run.seed for run in first.runs] == [0, 1]
    assert [run.path.name for run in second.runs] == ["c"]
    assert first.label != second.label
    assert second.label.endswith("/c)")


def test_groups_are_named_by_what_tells_them_apart() -> None:
    configs = [{"method": "fedavg", "lr": 0.1}, {"method": "fedavg", "lr": 0.5}, {"method": "fedetf", "lr": 0.1}]
    assert group_labels(configs) == ["fedavg, lr=0.1", "fedavg, lr=0.5", "fedetf"]


@pytest.mark.slow
def test_a_comparison_folder_brings_its_paired_table(tmp_path: Path) -> None:
    data = page_data(open_runs([made_comparison(tmp_path / "all")]))
    found = section(data, "paired")["data"]
    assert found["baseline"] == "fedavg"
    assert [row["difference"] is not None and row["difference"] != {} for row in found["scores"][0]["rows"]] == [
        False,
        True,
        True,
    ]
    assert section(data, "about")["data"]["command"].startswith("fedframe compare")


@pytest.mark.slow
def test_plain_runs_of_the_same_seeds_are_paired_like_scipy(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / f"{m}{s}", method=m, seed=s) for m in ("fedavg", "fedetf") for s in range(3)]
    row = section(page_data(open_runs(folders)), "paired")["data"]["scores"][0]["rows"][1]
    finals = [json.loads((path / "summary.json").read_text())["scores"]["generic"]["final"] for path in folders]
    test = stats.ttest_rel(finals[3:], finals[:3])
    assert row["difference"]["p"] == pytest.approx(test.pvalue, rel=1e-3)
    assert row["difference"]["mean"] == pytest.approx(np.mean(finals[3:]) - np.mean(finals[:3]), rel=1e-3)
    shutil.rmtree(folders[-1])
    assert section(page_data(open_runs(folders[:-1])), "paired")["missing"]  # other seeds: nothing to pair


@pytest.mark.slow
def test_runs_on_other_clients_are_never_paired(tmp_path: Path) -> None:
    splits = {"fedavg": "dirichlet:0.1", "fedetf": "dirichlet:0.5"}
    folders = [
        made_run(tmp_path / f"{m}{s}", method=m, seed=s, partition=split) for m, split in splits.items() for s in (0, 1)
    ]
    assert "same clients" in section(page_data(open_runs(folders)), "paired")["missing"]


@pytest.mark.slow
def test_spread_is_that_of_the_summary(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", clients=14)
    shared, own = section(page_data(open_runs([folder])), "spread")["data"]["panels"][0]["series"]
    values = sorted(json.loads((folder / "client_scores.json").read_text())["client"])
    assert shared["worst"] == pytest.approx((values[0] + values[1]) / 2, rel=1e-4)  # a tenth of 14, rounded up
    assert shared["std"] == pytest.approx(np.std(values), rel=1e-4)
    assert len(own["values"]) == 13  # one client has no model of its own


def test_sorted_features_stand_at_their_ranks(tmp_path: Path) -> None:
    found = section(page_data(open_runs([made_run(tmp_path / "run")])), "degeneration")["data"]["variants"][0]["data"]
    assert found["ranks"][:3] == [1, 3, 5]
    assert found["ranks"][-1] == 127
    assert found["classes"] == [f"class {i}" for i in range(1, 6)]  # the first one has too few samples
    assert found["pruning"][-1] == [1.0, 0.9, 0.9]


@pytest.mark.slow
def test_cases_of_a_comparison_are_called_as_they_were_swept(tmp_path: Path) -> None:
    out = made_cases(tmp_path / "out", ("fedavg", "fedprox"))
    data = page_data(open_runs([out]))
    labels = [entry["label"] for entry in section(data, "scores")["data"]["groups"]]
    assert labels == ["fedavg, alpha=0.1", "fedprox, alpha=0.1", "fedavg, alpha=0.5", "fedprox, alpha=0.5"]
    assert data["title"] == "fedavg and fedprox in 2 cases on digits"
    assert section(data, "paired")["missing"].endswith(f"fedframe report {(out / 'alpha=0.1').as_posix()}")


@pytest.mark.slow
def test_cases_that_still_go_on_have_the_same_names(tmp_path: Path) -> None:
    out = made_cases(tmp_path / "out", ("fedavg",))
    (out / "comparison.json").unlink()
    subject = open_runs([out])
    assert [group.label for group in subject.groups] == ["fedavg, alpha=0.1", "fedavg, alpha=0.5"]
    assert [len(group.runs) for group in subject.groups] == [2, 2]


def test_only_dirichlets_number_is_called_alpha() -> None:
    def labels(*splits: str) -> list[str]:
        return group_labels([{"method": "m", "partition": split} for split in splits])

    assert labels("longtail:9+dirichlet:0.1", "longtail:9+dirichlet:1") == ["m, alpha=0.1", "m, alpha=1"]
    assert labels("dirichlet:0.1", "iid") == ["m, partition=dirichlet:0.1", "m, partition=iid"]
    assert labels("dirichlet:1", "longtail:9+dirichlet:1")[0] == "m, partition=dirichlet:1"


@pytest.mark.slow
def test_settings_of_one_method_are_not_several_methods(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / str(lr), lr=lr) for lr in (0.01, 0.02, 0.03, 0.04, 0.05)]
    assert page_data(open_runs(folders))["title"] == "fedavg in 5 settings on digits"


def test_balanced_classes_have_no_frequent_and_rare_ones(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    for largest, kinds in ((29, []), (30, ["many", "medium", "few"])):  # the smallest class has 10
        summary["train_per_class"] = dict(zip(summary["per_class"], [largest, 10, 10, 10, 10, 10], strict=True))
        (folder / "summary.json").write_text(json.dumps(summary))
        found = section(page_data(open_runs([folder])), "classes")
        assert found["data"]["kinds"] == kinds
        assert set(found["data"]["groups"]) <= {*kinds, *([] if kinds else [""])}
        assert ("many" in found["read"]) == ("many" in found["alt"]) == bool(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heads", "alike"])
def test_what_needs_the_models_of_clients_says_whether_they_can_still_come(tmp_path: Path, name: str) -> None:
    folder = made_run(tmp_path / "run")
    known = json.loads((folder / "examination.json").read_text())
    (folder / "examination.json").write_text(json.dumps({**known, "cka": None, "classifier_drift": None}))
    assert "none were saved" in section(page_data(open_runs([folder])), name)["missing"]
    (folder / "examination.json").unlink()
    assert "fedframe report" in section(page_data(open_runs([folder])), name)["missing"]
    (folder / "summary.json").unlink()
    assert section(page_data(open_runs([folder])), name)["missing"].startswith("Appears when the run is finished")


@pytest.mark.slow
def test_bands_are_explained_where_there_are_any(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    assert "a band is" in section(page_data(open_runs(folders)), "curves")["read"]
    assert "band" not in section(page_data(open_runs(folders[:1])), "curves")["read"]


def test_collapse_that_is_rounding_alone_is_zero(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"nc2_angles": 0.3', '"nc2_angles": 5.8e-09'))
    known = json.loads((folder / "examination.json").read_text())
    known["collapse"] |= {"nc2_angles": 5.8e-9, "nc4": 2e-6}
    (folder / "examination.json").write_text(json.dumps(known))
    data = section(page_data(open_runs([folder])), "collapse")["data"]
    assert data["final"][0]["values"]["nc2_angles"] == 0
    assert data["final"][0]["values"]["nc4"] == 2e-6
    (angles,) = [panel for panel in data["panels"] if panel["key"] == "nc2_angles"]
    assert {point[3] for point in angles["series"][0]["points"]} == {0}


@pytest.mark.slow
def test_a_comparison_that_still_goes_on_shows_the_runs_there_are(tmp_path: Path) -> None:
    folder = made_comparison(tmp_path / "all")
    (folder / "comparison.json").unlink()
    assert [group.label for group in open_runs([folder]).groups] == ["fedavg", "fedetf", "fedprox"]


# -- size --------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_largest_page_is_below_six_megabytes(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", clients=1000, classes=100, rounds=450, samples=2000)
    html = make_page(open_runs([folder]))
    assert len(html.encode()) < 6_000_000
    data = embedded(html)
    drift = section(data, "drift")["data"]["variants"][0]["data"]
    assert drift["rounds"][-1] == 450
    assert "One round in" in drift["note"]
    assert len(section(data, "curves")["data"]["panels"][0]["series"][0]["points"]) == MOST_POINTS


@pytest.mark.slow
def test_a_comparison_of_many_large_runs_fits_too_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    folder = made_comparison(
        tmp_path / "all", ("fedavg", "fedprox", "fedetf", "fedrane"), 1, clients=1000, classes=100, rounds=150
    )
    html = make_page(open_runs([folder]))
    assert len(html.encode()) < 6_000_000
    data = section(embedded(html), "partition")
    shown = {variant["name"] for variant in data["data"]["variants"]}
    assert "fedavg" in shown
    assert all(name in shown or name in data["read"] for name in ("fedavg", "fedprox", "fedetf", "fedrane"))


def test_sections_are_cut_from_the_end_and_never_emptied() -> None:
    sections = [
        {"id": "a", "read": "", "data": {"variants": [{"name": str(i), "data": "x" * 1000} for i in range(5)]}},
        {"id": "b", "read": "", "data": {"text": "y" * 1000}},
    ]
    assert [len(s["data"].get("variants", [])) for s in drop_runs_to_fit([dict(s) for s in sections], 3500)] == [2, 0]
    assert [len(s["data"].get("variants", [])) for s in drop_runs_to_fit([dict(s) for s in sections], 10)] == [1, 0]


@pytest.mark.slow
def test_equal_partitions_of_several_methods_are_there_once(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / m, method=m) for m in ("fedavg", "fedetf")]
    shutil.copy(folders[0] / "examination.json", folders[1] / "examination.json")
    assert len(section(page_data(open_runs(folders)), "partition")["data"]["variants"]) == 1
