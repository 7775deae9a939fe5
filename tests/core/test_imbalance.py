"""Class imbalance: which class always naming it would score by, and the metric that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedframe.core.imbalance import BALANCED, METRIC, choose_metric, imbalance_text, majority, may_choose, told_metric
from fedframe.core.privacy import withholds_figures
from fedframe.data.federation import Federation
from fedframe.data.source import ArrayInputs, Samples
from fedframe.data.spec import DataSchema
from fedframe.data.target import Target
from fedframe.network.engine import is_plausible_count
from fedframe.network.node_data import federation_without_data
from fedframe.settings import Settings

FORM = DataSchema(("sick", "well"), (4,), None, torch.zeros(4), torch.ones(4))


def elsewhere(counts: list[int] | None, test: list[int] | None = None) -> Federation:
    labels = torch.tensor(test or [], dtype=torch.int64)
    samples = Samples(ArrayInputs(torch.zeros(len(labels), 4)), labels) if test else None
    made = federation_without_data(FORM, ["a", "b"], [50, 50], [20, 20], samples)
    return replace(made, told_counts=torch.tensor(counts) if counts is not None else None)


@pytest.mark.parametrize(
    ("counts", "test", "expected"),
    [
        (None, None, ("", 0.0)),
        ([0, 0], None, ("", 0.0)),
        ([2, 38], None, ("well", 0.95)),
        ([38, 2], None, ("sick", 0.95)),
        (None, [0] * 9 + [1], ("sick", 0.9)),
        ([2, 38], [0, 1], ("well", 0.95)),  # the organiser's own test data hide nothing of the nodes'
        ([20, 20], [1] * 19 + [0], ("well", 0.95)),
    ],
)
def test_the_majority_is_that_of_what_is_known(
    counts: list[int] | None, test: list[int] | None, expected: tuple[str, float]
) -> None:
    name, share = majority(elsewhere(counts, test))
    assert name == expected[0]
    assert share == pytest.approx(expected[1])


def test_the_metric_follows_only_where_it_is_left_open() -> None:
    rare, even = elsewhere([2, 38]), elsewhere([8, 32])  # 80 % is not more than 80 %
    assert choose_metric(Settings(), rare) == BALANCED
    assert choose_metric(Settings(), even) == choose_metric(Settings(), elsewhere(None)) == "accuracy"
    assert choose_metric(Settings(metric="auroc"), rare) == "auroc"
    numbers = replace(rare, source=replace(rare.source, target=Target("regression", ("age",))))
    assert majority(numbers) == ("", 0.0)
    assert choose_metric(Settings(task="regression"), numbers) == "mae"
    assert not may_choose("auto", numbers)


def test_nodes_are_told_of_a_metric_only_if_it_is_not_what_they_take_anyway() -> None:
    chosen = [Settings(metric=name) for name in ("accuracy", BALANCED)]
    assert [told_metric(Settings(), each) for each in chosen] == [{}, {METRIC: BALANCED}]
    assert told_metric(chosen[1], chosen[1]) == {}  # it was agreed


@pytest.mark.parametrize(
    ("counts", "fine"), [([2.0, 8.0], True), ([2.0, 9.0], False), ([-1.0, 5.0], False), ([-1e-9, 10.0], True)]
)
def test_counts_that_cannot_be_are_found(counts: list[float], fine: bool) -> None:
    assert is_plausible_count(torch.tensor(counts, dtype=torch.float64), 10) is fine


def test_the_sentence_says_what_the_majority_alone_would_score() -> None:
    assert "the majority class alone would score 95.0 %. Read" in imbalance_text("well", 0.95, "accuracy")
    assert imbalance_text("well", 0.95, BALANCED).endswith("Scores of this run are balanced accuracy.")


def test_noise_at_the_nodes_is_what_keeps_counts_at_home() -> None:
    from fedframe.core.imbalance import tells_counts

    private = Settings(privacy_clip=1.0, privacy_noise=1.0, privacy_at="node", weighting="uniform")
    assert withholds_figures(private)
    for settings, told in ((Settings(), True), (private, False), (Settings(score_bins=0), False)):
        assert tells_counts(settings, elsewhere(None)) is told
