"""What methods say of their own tuning refers to settings that exist, and holds for every recipe."""

from __future__ import annotations

import pytest

from fedframe.methods.part_settings import make_part
from fedframe.methods.parts import PARTS
from fedframe.methods.recipes import RECIPES, make_method
from fedframe.methods.tuning import COST, MAIN, MAIN_PART, RATE_FACTOR, exists, main_setting, rate_factor, relative_cost


@pytest.mark.parametrize("part", MAIN)
def test_every_value_of_a_main_setting_is_accepted_and_is_not_the_default(part: str) -> None:
    name, values = MAIN[part]
    default = getattr(make_part(PARTS[part], {}), name)
    for value in values:
        assert getattr(make_part(PARTS[part], {name: value}), name) == value != default
    assert len(set(values)) == len(values) == 2  # as many as a bench tries by default


def test_tables_name_parts_and_recipes_that_exist() -> None:
    assert {*RATE_FACTOR, *COST} <= {*PARTS}
    assert {*MAIN_PART} <= {*RECIPES}
    assert {part for part in MAIN_PART.values() if part} <= {*MAIN}


@pytest.mark.parametrize("method", RECIPES)
def test_main_setting_of_every_recipe_can_be_set(method: str) -> None:
    found = main_setting(method)
    if found is not None:
        for value in found.values:
            make_method(method, {found.part: {found.name: value}})


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("fedavg", None),
        ("fedprox", "prox.mu"),
        ("fedetf", "temperature.beta"),
        ("fedavg_etf", "gmv.alpha"),
        ("fedavg+etf", "etf.scale"),
        ("fedavg+etf+gmv", "gmv.alpha"),
        ("fedadam+etf", "etf.scale"),
        ("spherefed", None),
        ("fedadam+spherefed", "fedadam.lr"),
    ],
)
def test_main_setting_is_that_of_the_last_piece_that_has_one(method: str, setting: str | None) -> None:
    found = main_setting(method)
    assert (f"{found.part}.{found.name}" if found else None) == setting


def test_squared_error_has_a_larger_grid_of_rates() -> None:
    assert rate_factor("fedavg") == 1
    assert rate_factor("fednova+spherefed") == RATE_FACTOR["mse"] > 1


def test_costs_multiply() -> None:
    assert relative_cost("fedavg") == 1
    assert relative_cost("moon+lra") == COST["moon"] * COST["lra"]


def test_method_exists_if_each_of_its_pieces_does() -> None:
    assert exists("fedavg+etf")
    assert exists("fedavg + mine.py:MyPart")
    assert not exists("fedavg+nothing_of_that_name")
