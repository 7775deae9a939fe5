"""The tables that come along: every row is a method that builds with the table's net, every number has its place."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from fedframe.core.model import has_batch_norm
from fedframe.data.augment import read_augment
from fedframe.data.load import LOADERS
from fedframe.data.partition import read_partition
from fedframe.errors import SettingError
from fedframe.experiments.papers.cell_grid import RATES
from fedframe.experiments.papers.cells import Choice, cell_settings, placed_cells
from fedframe.experiments.papers.scale import SIZES, Scale, local_steps
from fedframe.experiments.papers.table import PaperTable, load_table, read_table, table_names
from fedframe.experiments.papers.tuning import tuned_places
from fedframe.methods.recipes import make_method
from fedframe.models import build_net
from fedframe.settings import Settings
from tests.test_docs import ROOT

SHAPES = {"digits": (1, 8, 8), "femnist": (1, 28, 28), "tiny-imagenet": (3, 64, 64), "list": (3, 224, 224)}
SHAPES |= dict.fromkeys(("mnist", "fashion-mnist", "emnist-letters"), (1, 28, 28))
SHAPES |= dict.fromkeys(("cifar10", "cifar100"), (3, 32, 32))
CLASSES = {"femnist": 62, "list": 100}  # a list has more; vectors for a thousand classes take a while to find


@cache
def batched_copy(net: str, shape: tuple[int, ...]) -> tuple[int, bool]:
    """How many numbers a net gives and whether it has BatchNorm; its weights are never made."""
    with torch.device("meta"):
        made = build_net(net, shape)
    return int(made.dim), has_batch_norm(made)  # type: ignore[arg-type]


@cache
def build(method: str, parts: str, net: str, data: str, clients: int) -> None:
    """Put a method's model together, as a run does before it starts, on a small backbone with the net's features."""
    made = make_method(method, yaml.safe_load(parts))
    dim, norms = batched_copy(net, SHAPES[data])
    backbone = nn.Sequential(nn.Linear(1, dim), nn.BatchNorm1d(dim) if norms else nn.Identity())
    model = made.build(backbone, dim, CLASSES.get(data) or SIZES[data][1])
    for part in made.parts:
        part.check_model(model, clients)


@pytest.mark.slow
@pytest.mark.parametrize("name", table_names())
def test_every_cell_of_a_table_can_be_built(name: str) -> None:
    table = load_table(name)
    for place in placed_cells(table, Choice()):
        settings = place.cell.settings
        data = settings.data.partition(":")[0]
        assert data in LOADERS
        read_partition(settings.partition)
        read_augment(settings.augment)
        for part in make_method(settings.method, settings.set).parts:
            part.check_settings(settings)
        build(settings.method, yaml.safe_dump(settings.set), settings.model, data, settings.clients or 20)


def test_tables_of_all_five_papers_are_there() -> None:
    papers = {name.rpartition("-")[0] for name in table_names()}
    assert papers == {"fedavg_etf", "fedetf", "fedloge", "fedrane", "spherefed"}
    assert table_names().index("fedloge-9") < table_names().index("fedloge-10")


@pytest.mark.parametrize("name", table_names())
def test_printed_numbers_are_plausible(name: str) -> None:
    table = load_table(name)
    printed = [n for row in table.rows for n in row.paper]
    low, high = {
        "percent": (2, 100),
        "share": (0.02, 1),
        "count": (1, 1000),
        "megabytes": (1, 1e4),
        "plain": (1e-12, 100),
    }[table.unit]
    assert all(low <= n <= high for n in printed if n is not None)
    assert any(n is not None for n in printed)


# How many numbers each table prints and what they add up to, counted when the files had been compared with the papers'
# texts: a later slip of a digit shows.
TOTALS: dict[str, tuple[int, float]] = {
    "fedavg_etf-1": (18, 1226.9),
    "fedavg_etf-2": (30, 2043.8),
    "fedavg_etf-3": (96, 6653.1),
    "fedavg_etf-4": (24, 1506.9),
    "fedavg_etf-5": (12, 805.2),
    "fedavg_etf-6": (4, 299.5),
    "fedetf-1": (114, 5254.56),
    "fedetf-2": (40, 2521.95),
    "fedloge-1": (168, 114.1535),
    "fedloge-2": (102, 42.8153),
    "fedloge-3": (12, 6.6742),
    "fedloge-6": (24, 549.27),
    "fedloge-7": (6, 3.4202),
    "fedloge-8": (24, 10.8091),
    "fedloge-9": (40, 17.2411),
    "fedloge-10": (3, 213),
    "fedloge-11": (24, 13.1822),
    "fedrane-1": (132, 90.2183),
    "fedrane-2": (144, 110.1323),
    "spherefed-1": (3, 867),
    "spherefed-2": (64, 3653.59),
    "spherefed-3": (9, 620.94),
    "spherefed-4": (8, 509.42),
}


@pytest.mark.parametrize("name", table_names())
def test_printed_numbers_add_up(name: str) -> None:
    printed = [n for row in load_table(name).rows for n in row.paper if n is not None]
    assert (len(printed), round(sum(printed), 4)) == TOTALS[name]


@pytest.mark.parametrize("name", table_names())
def test_settings_are_the_papers_and_not_left_to_chance(name: str) -> None:
    """What decides on the result stands in the table's file, for every cell alike or by its column."""
    table = load_table(name)
    for column, values in table.columns.items():
        for setting in ("data", "partition", "clients", "rounds", "epochs", "batch", "local_test"):
            assert setting in {**table.settings, **values}, f"{setting} of {column}"


@pytest.mark.slow
def test_tables_share_their_runs() -> None:
    """FedRANE's two tables print two scores of the same runs."""
    first, second = (
        {place.cell.folder for place in placed_cells(load_table(name), Choice())} for name in ("fedrane-1", "fedrane-2")
    )
    assert len(first & second) == 10 * 12
    assert {p.cell.folder for p in placed_cells(load_table("fedavg_etf-5"), Choice())} & {
        p.cell.folder for p in placed_cells(load_table("fedavg_etf-2"), Choice())
    }


# -- reading a table ---------------------------------------------------------------------------------------------------
GOOD: dict[str, Any] = {
    "title": "t",
    "paper": "p",
    "unit": "percent",
    "scores": {"G": "generic.final", "P": "personal.final"},
    "settings": {"data": "digits", "rounds": 100, "eval_every": 10, "set": {"fine_tune": {"epochs": 2}}},
    "columns": {"a": {"partition": "iid", "lr": 0.3}, "b": {"partition": "dirichlet:1"}},
    "rows": [
        {"name": "x", "method": "fedavg", "paper": [1, 2, None, 4]},
        {
            "name": "y",
            "method": "fedprox",
            "settings": {"lr": 0.2, "set": {"prox": {"mu": 0.5}}},
            "columns": {"b": {"lr": 0.4, "set": {"prox": {"mu": 0.7}}}},
            "paper": [5, 6, 7, 8],
        },
    ],
}


def table_of(**changes: Any) -> PaperTable:
    """The good table with something changed."""
    return read_table("toy", yaml.safe_dump({**GOOD, **changes}), "toy.yaml")


def settings_of(row: str, column: str, choice: Choice | None = None) -> Settings:
    table = table_of()
    found = next(each for each in table.rows if each.name == row)
    return cell_settings(table, found, column, 0, choice or Choice())


def test_numbers_are_read_from_left_to_right() -> None:
    table = table_of()
    assert [table.printed(table.rows[0], column, score) for column in "ab" for score in "GP"] == [
        0.01,
        0.02,
        None,
        0.04,
    ]


def test_row_beats_column_beats_table() -> None:
    assert settings_of("x", "a").lr == 0.3
    assert settings_of("y", "a").lr == 0.2
    assert settings_of("y", "b").lr == 0.4
    assert settings_of("y", "b").set == {"fine_tune": {"epochs": 2}, "prox": {"mu": 0.7}}
    assert settings_of("x", "b").set == {"fine_tune": {"epochs": 2}}


def test_settings_of_parts_reach_the_rows_that_have_them() -> None:
    choice = Choice(set={"prox": {"mu": 0.9}})
    assert settings_of("y", "b", choice).set["prox"] == {"mu": 0.9}
    assert "prox" not in settings_of("x", "b", choice).set
    with pytest.raises(SettingError, match="no chosen row of toy has a part 'gmv'"):
        placed_cells(table_of(), Choice(set={"gmv": {"alpha": 1.0}}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": {"round": 3}}, "There is no setting 'round'; did you mean 'rounds'"),
        ({"settings": {"seed": 3}}, "'seed' does not belong"),
        ({"scores": {"G": "generic.best"}}, "There is no score 'generic.best'"),
        ({"scores": {"G": "generic.last"}}, "Row 'x' has 4 numbers; the table has 2 in a line"),
        ({"scores": {"G": "rounds_to:0.5", "P": "few"}}, "'rounds_to:0.5' is not counted in percent"),
        ({"columns": {"a, b": {}, "c": {}}}, "has a comma"),
        ({"rows": [GOOD["rows"][0], GOOD["rows"][0]]}, "same name"),
        ({"rows": [{**GOOD["rows"][0], "columns": {"c": {}}}]}, "There is no column 'c'"),
        ({"rows": [{**GOOD["rows"][0], "scores": {"Q": "few"}}]}, "There is no score 'Q'"),
        ({"scores": {"G": "model.pruning", "P": "few"}}, "'model.pruning' is not one number; it belongs into a figure"),
        ({"scores": {"G": "model.angle_mean", "P": "few"}}, "'model.angle_mean' is not counted in percent"),
        ({"scores": {"G": "model.angles", "P": "few"}}, "There is no measurement 'model.angles'"),
        ({"unit": "points"}, "unit: Input should be 'percent', 'share', 'count', 'megabytes' or 'plain'"),
        ({"rates": [0.1]}, "rates = [0.1]: a choice is between two or more above 0"),
        ({"rates": [0.1, -1]}, "a choice is between two or more above 0"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
    ],
)
def test_mistake_in_a_table_is_named_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        table_of(**changes)
    assert str(caught.value).startswith("toy.yaml: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'fedrane-1'"):
        load_table("fedrane-11")
    with pytest.raises(SettingError, match="There is no file"):
        load_table(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("- a\n- b\n")
    with pytest.raises(SettingError, match="must hold a table"):
        load_table(str(tmp_path / "mine.yaml"))


# -- scale -------------------------------------------------------------------------------------------------------------
def test_scale_takes_equally_from_rounds_and_data() -> None:
    scaled = settings_of("x", "a", Choice(scale=Scale(0.25)))
    assert (scaled.rounds, scaled.data_share, scaled.eval_every) == (50, 0.5, 5)
    tiny = settings_of("x", "a", Choice(scale=Scale(0.0001)))
    assert (tiny.rounds, tiny.data_share, tiny.eval_every) == (3, 0.01, 1)
    full = settings_of("x", "a")
    assert (full.rounds, full.data_share, full.eval_every) == (100, 1.0, 10)
    assert Scale(0.01).apply({"rounds": 2})["rounds"] == 2
    assert Scale(0.25).apply({"rounds": 1000})["eval_every"] == 10  # at most 50 evaluations: test sets do not shrink
    assert Scale(0.01).apply({"rounds": 100, "eval_every": 0})["eval_every"] == 0


@pytest.mark.parametrize("share", [0.5, 0.05, 0.01])
def test_local_steps_shrink_by_the_scale(share: float) -> None:
    table = load_table("fedrane-1")
    row, column = table.rows[0], "FMNIST Dir(0.1)"
    full = local_steps(cell_settings(table, row, column, 0, Choice()))
    scaled = local_steps(cell_settings(table, row, column, 0, Choice(scale=Scale(share))))
    assert full == pytest.approx(100 * 5 * (60_000 * 0.75 / 128 + 20 / 2), rel=0.01)
    assert full is not None
    assert scaled is not None
    assert scaled / full == pytest.approx(share, rel=0.3)  # smaller clients have more batches that are not full


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_scale_outside_its_bounds_is_refused_in_one_sentence(share: float) -> None:
    with pytest.raises(SettingError, match=r"scale = .*; use scale = 0.05"):
        Scale(share)


def test_sentence_says_what_was_scaled() -> None:
    assert "45 of 200 rounds and 22.4 % of the training samples" in Scale(0.05).sentence(200)
    assert Scale().sentence(200).startswith("Full size")


def test_rows_and_columns_are_picked_by_name_or_pattern() -> None:
    table = load_table("fedrane-1")
    names = {p.cell.name for p in placed_cells(table, Choice(rows=["fedavg", "FEDRANE*"], columns=["fmnist dir(0.1)"]))}
    assert names == {f"{row}, FMNIST Dir(0.1)" for row in ("FedAvg", "FedRANE", "FedRANE-w/o-LRA", "FedRANE-w/o-GNE")}
    assert len(placed_cells(table, Choice(rows=["FedAvg"], seeds=3))) == 36
    with pytest.raises(SettingError, match="There is no row 'fedavgg'; did you mean 'FedAvg'"):
        placed_cells(table, Choice(rows=["fedavgg"]))
    with pytest.raises(SettingError, match="There is no column"):
        placed_cells(table, Choice(columns=["mnist"]))
    with pytest.raises(SettingError, match="use seeds = 3"):
        placed_cells(table, Choice(seeds=0))


# -- tuning ------------------------------------------------------------------------------------------------------------
def test_rates_are_open_unless_a_row_has_its_own() -> None:
    table = table_of()
    open_row, fixed_row = table.rows  # the table's column sets lr for both, the second row its own
    assert table.candidate_rates(open_row, "a") == RATES
    assert table.candidate_rates(fixed_row, "a") == ()
    own = table_of(rates=[0.2, 0.4], rows=[{**GOOD["rows"][1], "rates": [1.0, 2.0]}, GOOD["rows"][0]])
    assert own.candidate_rates(own.rows[0], "b") == (1.0, 2.0)
    assert own.candidate_rates(own.rows[1], "b") == (0.2, 0.4)


def test_candidates_train_without_the_held_out_share_and_finals_with_all() -> None:
    (first, *others) = tuned_places(table_of(), Choice(seeds=2))
    assert {(place.row.name, place.column) for place in (first, *others)} == {("x", "a"), ("x", "b")}
    found = [cell.settings for cell in first.cells.values()]
    assert [settings.lr for settings in found] == [*RATES]
    assert {(settings.validate_share, settings.seed) for settings in found} == {(0.2, 0)}
    placed = placed_cells(table_of(), Choice(seeds=2), {("x", "a"): 0.07})
    rates = {(p.row.name, p.column, p.seed): (p.cell.settings.lr, p.cell.settings.validate_share) for p in placed}
    assert rates["x", "a", 0] == rates["x", "a", 1] == (0.07, 0.0)
    assert rates["x", "b", 0] == (0.1, 0.0)
    assert rates["y", "b", 1] == (0.4, 0.0)


def test_rows_without_a_shared_model_are_tuned_by_personal_models() -> None:
    table = table_of(
        rows=[{"name": "x", "method": "fedper", "paper": [None, 2, None, 4]}, GOOD["rows"][0] | {"name": "z"}]
    )
    selects = {place.row.name: place.tuning.select for place in tuned_places(table, Choice())}
    assert selects == {"x": "personal.final", "z": "generic"}
    personal = table_of(scores={"P": "personal.final"}, rows=[{"name": "x", "method": "fedavg", "paper": [1, 2]}])
    assert {place.tuning.select for place in tuned_places(personal, Choice())} == {"personal.final"}


def test_table_whose_rates_are_all_fixed_cannot_be_tuned() -> None:
    with pytest.raises(SettingError, match="fixes the learning rates of all chosen rows; leave --tune out"):
        tuned_places(table_of(), Choice(rows=["y"]))


def test_length_of_fedloges_class_vectors_is_what_the_page_says() -> None:
    """0.1 as in the authors' code, 1.6 in Table 2; other lengths only where the length is what is varied."""
    found = {
        (name, row.settings["set"]["sse_c"]["norm"])
        for name in table_names()
        if name != "fedloge-6"
        for row in load_table(name).rows
        if "norm" in row.settings.get("set", {}).get("sse_c", {}) and "length" not in row.name
    }
    assert {norm for name, norm in found if name == "fedloge-2"} == {1.6}
    assert {norm for name, norm in found if name != "fedloge-2"} == {0.1}
    page = " ".join((ROOT / "docs" / "papers.md").read_text().split())
    assert "class vectors of length 0.1 as in the authors' code (the text: about 1, and 1.6 in Table 2)" in page


def test_fedopt_and_mlpnet_of_huang_et_al_are_what_the_notes_say() -> None:
    for name in ("fedavg_etf-1", "fedavg_etf-2"):
        rows = {row.name: row for row in load_table(name).rows}
        assert rows["FedOpt"].settings == {"set": {"fedadam": {"lr": 0.0003}}}
        assert rows["FedOpt as server momentum"].method == "fedavgm"
    assert load_table("fedavg_etf-6").settings["model"] == "mlp:1024x1024x128"
