"""The essentials of a page: the verdict, scores with intervals, who gains, confusion, what left the sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedframe.core.evaluation import EASIER_TASK, definitions
from fedframe.report.page.build import default_target, page_data
from fedframe.report.page.essentials import beats
from fedframe.report.page.runs import open_runs
from fedframe.settings import REMOTE_DATA
from fedframe.util.text import sentence
from tests.report.made import made_comparison, made_run

SITES = ["north", "south", "west"]


def sections(*folders: Path, live: bool = False) -> dict[str, Any]:
    """The sections of a page by their ids, in order."""
    return {section["id"]: section for section in page_data(open_runs(folders), live)["sections"]}


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def made_federation(folder: Path) -> Path:
    """A federation's run of three named hospitals, as its organiser has it."""
    run = made_run(folder, clients=3, client_names=SITES, classes=2, names=["ill", "well"])
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "data": REMOTE_DATA, "partition": "nodes"}))
    (run / "federation.json").write_text("{}")
    (run / "examination.json").unlink()
    change(run / "summary.json", bytes_up_total=72_100, clients=3, checksum=None)
    return run


def test_essentials_come_first_and_settings_last(tmp_path: Path) -> None:
    found = sections(made_run(tmp_path / "run"))
    filled = [name for name, section in found.items() if not section.get("missing")]
    assert filled[0] == "essentials"
    assert filled[-1] == "about"
    assert filled.index("curves") < filled.index("about")


def test_a_run_that_goes_on_has_its_curves_first_and_a_bar(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", rounds=8)
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    seconds = [{**json.loads(line), "seconds": 2.0} for line in lines[:6]]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in seconds))
    data = page_data(open_runs([run]), live=True)
    assert data["sections"][0]["id"] == "curves"
    assert data["progress"] == {"done": 6, "total": 8, "left": pytest.approx(4.0)}
    assert page_data(open_runs([run]))["progress"] is None
    assert "essentials" not in {section["id"] for section in data["sections"]}


def test_personal_stands_beside_generic_with_the_sentence_on_easier_tasks(tmp_path: Path) -> None:
    data = sections(made_run(tmp_path / "run"))["essentials"]["data"]
    assert {"generic", "personal"} <= {row["score"] for row in data["scores"]}
    assert data["easier"] == sentence(EASIER_TASK)


def test_a_federation_names_its_sites_and_says_what_left_them(tmp_path: Path) -> None:
    run = made_federation(tmp_path / "run")
    page = page_data(open_runs([run]))
    found = {section["id"]: section for section in page["sections"]}
    assert page["subtitle"].startswith("3 sites: north, south and west")
    left = found["essentials"]["data"]["left"]
    assert "72.1 kB of model updates left the 3 sites in all, 24 kB a site" in left
    assert "no sample and no sample's label" in left
    spread = found["spread"]
    assert spread["title"] == "Site by site"
    assert spread["data"]["few"]
    assert {name for line in spread["data"]["panels"][0]["series"] for name in line["clients"]} == set(SITES)


@pytest.mark.parametrize(
    ("node", "client", "personal"),
    [
        (
            "",
            "AUROC of the shared model on each site's own test data, unweighted mean over sites that have one",
            "each",
        ),
        ("clientele", "AUROC of the shared model on clientele's own test data", "clientele's"),
    ],
)
def test_scores_of_a_federation_are_of_sites(tmp_path: Path, node: str, client: str, personal: str) -> None:
    run = made_federation(tmp_path / "run")
    change(run / "summary.json", data=REMOTE_DATA, node=node, definitions=definitions(0.0, "auroc"), measures={})
    words = sections(run)["scores"]["data"]["definitions"]
    assert words["client"] == client
    assert words["personal"].startswith(f"AUROC of {personal}")
    assert "client" not in words["personal"].replace("clientele", "")
    change(run / "summary.json", data="digits")  # clients of a simulation stay clients
    assert "each client's own test data" in sections(run)["scores"]["data"]["definitions"]["client"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "with scores, histograms of scores and, from these, how many test samples each class has; no sample"),
        ({"score_bins": 0}, "a site, with scores; no sample"),
        ({"privacy_clip": 1.0, "privacy_at": "node"}, "and no score, as these have no noise; no sample"),
    ],
)
def test_what_left_the_sites_is_what_was_agreed(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    run = made_federation(tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, **settings}))
    assert said in sections(run)["essentials"]["data"]["left"]


def test_a_page_is_named_after_its_data_and_not_after_how_their_columns_are_read(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    data = "csv:/home/me/sites/north.csv?drop=id&date=seen:%d/%m/%Y"
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "data": data}))
    assert page_data(open_runs([run]))["title"].endswith(" on north.csv")


def test_many_clients_keep_the_curve(tmp_path: Path) -> None:
    assert not sections(made_run(tmp_path / "run", clients=30))["spread"]["data"]["few"]


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ({"mean": 0.117, "low": 0.096, "high": 0.138}, "fedetf beats fedavg by 11.7 points [9.6, 13.8]."),
        ({"mean": -0.02, "low": -0.03, "high": -0.01}, "fedetf loses to fedavg by 2.0 points [1.0, 3.0]."),
        (
            {"mean": 0.01, "low": -0.02, "high": 0.04},
            "Between fedetf and fedavg there is no clear difference: +1.0 points [-2.0, +4.0].",
        ),
        (
            {"mean": 0.01, "low": None, "high": None},
            "fedetf is ahead of fedavg by 1.0 points with one seed, which is no proof; use --seeds 3.",
        ),
        (
            {"mean": 0.0, "low": None, "high": None, "pairs": 3},
            "fedetf and fedavg score exactly the same with every seed.",
        ),
        (
            {"mean": 0.01, "low": None, "high": None, "pairs": 3},
            "fedetf is ahead of fedavg by 1.0 points, the same with every seed.",
        ),
    ],
)
def test_the_verdict_on_two_methods(difference: dict[str, float | None], said: str) -> None:
    assert beats({"label": "fedetf", "difference": difference}, "fedavg") == said


def test_a_comparison_begins_with_its_verdict_and_has_one_page(tmp_path: Path) -> None:
    folder = made_comparison(tmp_path / "comparison", ("fedavg", "fedetf"))
    said = sections(folder)["essentials"]["data"]["verdict"]
    assert "fedetf" in said[0]
    assert "fedavg" in said[0]
    assert "[" in said[0]
    assert said[-1].startswith("By the accuracy of the shared model")
    assert said[-1].endswith("; in brackets the 95 % interval.")
    found = json.loads((folder / "comparison.json").read_text())
    found["methods"][1]["difference"]["generic.final"] |= {"low": None, "high": None}  # one seed has no interval
    change(folder / "comparison.json", **found)
    assert "brackets" not in sections(folder)["essentials"]["data"]["verdict"][-1]
    assert default_target([folder]) == folder / "comparison.html"
    assert default_target([tmp_path / "other"]) == tmp_path / "other" / "report.html"
