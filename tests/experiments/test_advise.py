"""Advice on methods: what is measured about data, which rules apply, and that they say no more than the results."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

from fedframe.cli import app
from fedframe.cli.options import part_settings
from fedframe.data import load_source, make_federation
from fedframe.experiments.advise import CANDIDATES, RULES, Facts, Rule, advise, facts_of
from fedframe.jobs.gather import gather
from fedframe.methods.recipes import make_method
from fedframe.network.compatibility import check_summable
from fedframe.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
PLAIN = Facts("made", "images", 10, 20, 2000, 100, skew=0.7, tail=1.0)


def methods(**change: Any) -> list[str]:
    return [each.rule.method for each in advise(Facts(**{**vars(PLAIN), **change}), {"data": "digits"})]


def test_facts_are_those_of_a_plain_count() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [400, 200, 20])
    x, users = rng.normal(size=(620, 4)), np.where(y == 0, 0, 1)
    federation = make_federation(
        load_source({"x_train": x, "y_train": y, "user_train": users}), partition="user", clients=None, seed=0
    )
    facts = facts_of(federation)
    mixes, sizes = [], []
    for client in range(2):
        labels = federation.source.train.y[federation.train[client]].numpy()
        mixes.append(np.bincount(labels, minlength=3) / len(labels))
        sizes.append(len(labels))
    mean = np.average(mixes, axis=0, weights=sizes)
    distance = [sum(abs(a - b) for a, b in zip(mix, mean, strict=True)) / 2 for mix in mixes]
    assert facts.skew == pytest.approx(np.average(distance, weights=sizes))
    assert facts.tail == pytest.approx(20)
    assert (facts.kind, facts.classes, facts.clients, facts.samples) == ("vectors", 3, 2, sum(sizes))


def test_what_is_asked_for_comes_first() -> None:
    assert methods()[0] == "analytic"
    assert methods(attackers=True) == ["rfa", "trimmed_mean+nnm", "norm_bound"]
    assert "rfa" not in methods(attackers=True, privacy="secure")
    assert methods(tail=50.0)[1:] == ["fedrod", "fedavg+balanced_ce"]
    assert "fedloge" in methods(tail=50.0, wish="personal")
    assert methods(rounds=10)[1:] == ["fedyogi", "fedadam"]
    assert "local" in methods(wish="personal", per_client=2000, skew=0.1)
    assert methods(new_clients=True, skew=0.0)[0] == "analytic"


def test_what_needs_single_updates_is_not_named_where_only_sums_are_seen() -> None:
    facts = Facts(**{**vars(PLAIN), "attackers": True, "privacy": "secure"})
    found = [each.rule.method for each in advise(facts, {})]
    assert len(found) == CANDIDATES
    assert not {"rfa", "trimmed_mean+nnm", "norm_bound"} & {*found}
    for name in found:
        check_summable(make_method(name, {}))


@pytest.mark.parametrize("privacy", ["none", "secure", "noise"])
@pytest.mark.parametrize("skew", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("wish", ["shared", "personal"])
@pytest.mark.parametrize("clients", [5, 500])
def test_there_are_always_three_and_their_commands_are_understood(
    privacy: str, skew: float, wish: str, clients: int
) -> None:
    facts = Facts(**{**vars(PLAIN), "privacy": privacy, "skew": skew, "wish": wish, "clients": clients, "rounds": 12})
    found = advise(facts, {"data": "npz:my file.npz", "clients": clients})
    assert len({each.rule.method for each in found}) == CANDIDATES
    for each in found:
        check_command(each.command)
        assert ("--privacy-noise" in each.command) == (privacy == "noise")
        assert ("--secure" in each.command) == (privacy == "secure")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.method}: {rule.when}")
def test_a_rule_says_no_more_than_its_page(rule: Rule) -> None:
    text = (DOCS / rule.page).read_text()
    numbers = [float(each) for each in re.findall(r"(?<![\w.])\d*\.\d+", text)]
    for figure in re.findall(r"(?<!\w)\.\d{3,4}", rule.evidence):
        digits = len(figure) - 1
        assert any(float(figure) in (round(n, digits), round(n / 100, digits)) for n in numbers), (
            f"{figure}: {rule.page}"
        )
    make_method(rule.method, {})


def check_command(text: str) -> None:
    """The command parses, and its method takes its settings."""
    program, name, *words = shlex.split(text)
    assert (program, name) == ("fedframe", "run")
    group: Any = typer.main.get_command(app)
    given = group.get_command(None, "run").make_context("run", words).params
    chosen = {key: value for key, value in given.items() if key in Settings.model_fields and value is not None}
    settings = gather({**chosen, "set": part_settings(given["set_"] or [])}, None)
    make_method(settings.method, settings.set)


def test_the_command_looks_at_data_and_fits_80_columns() -> None:
    done = CliRunner().invoke(app, ["advise", "--data", "digits", "--partition", "iid", "--want", "personal"])
    assert done.exit_code == 0, done.output
    assert "labels: alike" in done.output
    assert "fedframe run fedavg --data digits --partition iid" in done.output
    assert "fedframe compare" in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines() if "fedframe run" not in line)
