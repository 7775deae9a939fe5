"""Colours that can be told apart, also by readers who see fewer of them, and read on their background."""

from __future__ import annotations

import itertools
import re

import numpy as np
import numpy.typing as npt
import pytest

from fedframe.report.figures.style import COLOURS
from fedframe.report.page.template import asset

Colour = npt.NDArray[np.float64]
BACKGROUND = {"light": "#ffffff", "dark": "#141a22"}
# Machado, Oliveira and Fernandes (2009), full severity, for linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def palette(name: str) -> list[str]:
    found = re.search(rf"{name}: \[([^\]]+)\]", asset("theme.js"))
    assert found is not None
    return re.findall(r"#[0-9a-f]{6}", found[1])


def linear(text: str) -> Colour:
    share = np.array([int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb: Colour) -> Colour:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(first: str, second: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(text)) + 0.05 for text in (first, second))
    return high / low


@pytest.mark.parametrize("theme", BACKGROUND)
def test_lines_stand_out_from_their_background(theme: str) -> None:
    for colour in palette(theme):
        assert contrast(colour, BACKGROUND[theme]) >= 3, colour


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", BACKGROUND)
def test_lines_can_be_told_apart_by_all_eyes(theme: str, vision: str) -> None:
    seen = [lab(VISION[vision] @ linear(colour)) for colour in palette(theme)]
    for (i, first), (j, second) in itertools.combinations(enumerate(seen), 2):
        assert np.linalg.norm(first - second) > (20 if j < 5 else 12), (i, j)


def test_pages_and_figures_have_the_same_colours() -> None:
    assert palette("light") == list(COLOURS)
