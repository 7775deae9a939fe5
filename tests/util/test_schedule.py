from __future__ import annotations

import math

import pytest

from fedframe.errors import SettingError
from fedframe.settings import check
from fedframe.util.schedule import Schedule


def rates(schedule: str, rounds: int = 4) -> list[float]:
    return [0.5 * Schedule.read(schedule).factor(round, rounds) for round in range(1, rounds + 1)]


def test_schedules_follow_their_formulas() -> None:
    assert rates("constant") == [0.5] * 4
    assert rates("cosine") == pytest.approx([0.25 * (1 + math.cos(math.pi * t / 4)) for t in range(4)])
    assert rates("cosine:0.1")[-1] == pytest.approx(0.5 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 3 / 4))))
    assert rates("exponential:0.5") == [0.5, 0.25, 0.125, 0.0625]
    assert rates("step:0.1@0.5,0.75") == pytest.approx([0.5, 0.5, 0.05, 0.005])
    assert rates("step") == pytest.approx([0.5, 0.5, 0.05, 0.005])


@pytest.mark.parametrize("rounds", [10, 20, 30, 50, 100, 1000])
def test_rate_can_be_cut_to_a_tenth_for_the_last_tenth_of_the_rounds(rounds: int) -> None:
    last = rounds // 10
    assert rates("step:0.1@0.9", rounds) == pytest.approx([0.5] * (rounds - last) + [0.05] * last)


@pytest.mark.parametrize(
    "schedule",
    [
        "linear",
        "exponential:fast",
        "step:-1",
        "",
        "exponential:0.9,0.8",
        "step:@0.5,",
        "cosine:0.1@0.5",
        "step:nan",
        "constant:5",
        "cosine:2",
    ],
)
def test_unknown_schedule_is_refused_with_those_that_work(schedule: str) -> None:
    with pytest.raises(SettingError, match=r"lr_schedule = .* exponential:0.99"):
        check({"lr_schedule": schedule})
