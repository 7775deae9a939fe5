"""The result at the end of a run is readable on a narrow terminal."""

from __future__ import annotations

import pytest

from fedframe.runs.progress import fold

SCORE = "  generic   90.0 % [86.4, 92.7]  accuracy of the shared model on the global test set (359 test samples)"
UNNAMED = (
    "            89.5 %               generic, mean of the last 5 evaluations, before the server stage of the method"
)
WITHOUT = "  client         –               fedper has no shared model that predicts, so that there is nothing to score"  # noqa: RUF001
PROSE = (
    "  Personal is no match for generic: a client with two classes has an easier task than telling all classes apart."
)


@pytest.mark.parametrize("line", [SCORE, UNNAMED, WITHOUT])
def test_words_about_a_score_stay_in_their_column(line: str) -> None:
    lines = fold(line, 80)
    assert len(lines) > 1
    assert all(len(each) <= 80 for each in lines)
    assert all(each[:33].isspace() and not each[33].isspace() for each in lines[1:])
    assert " ".join(" ".join(lines).split()) == " ".join(line.split())


def test_other_lines_are_indented_as_they_begin() -> None:
    lines = fold(PROSE, 80)
    assert [len(each) - len(each.lstrip()) for each in lines] == [2, 2]
    assert fold("", 80) == [""]


def test_a_very_narrow_terminal_and_a_long_path_lose_nothing() -> None:
    path = "  Everything is in runs/" + "long-name-" * 12
    assert "".join(fold(path, 40)).replace(" ", "") == path.replace(" ", "")
    assert all(len(each) <= 40 for each in fold(SCORE, 40))
