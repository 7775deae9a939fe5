"""The versions that were tested are complete, and are versions that pyproject.toml allows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_docs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(pin.name): next(iter(pin.specifier)).version
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for pin in [Requirement(line)]
}


def requirements(extra: str) -> Iterator[Requirement]:
    """What an extra asks for, with that of the extras it brings along."""
    for text in PROJECT["optional-dependencies"][extra]:
        asked = Requirement(text)
        if asked.name != PROJECT["name"]:
            yield asked
        for other in asked.extras if asked.name == PROJECT["name"] else ():
            yield from requirements(other)


def test_everything_that_the_readmes_commands_install_has_a_tested_version() -> None:
    asked = [*map(Requirement, PROJECT["dependencies"]), *requirements("dev")]
    missing = sorted(each.name for each in asked if canonicalize_name(each.name) not in PINS)
    assert not missing, f"constraints.txt has no version of {', '.join(missing)}"


def test_tested_versions_are_allowed_ones() -> None:
    asked = [*map(Requirement, PROJECT["dependencies"])]
    asked += [each for extra in PROJECT["optional-dependencies"] for each in requirements(extra)]
    for each in asked:
        version = PINS.get(canonicalize_name(each.name))
        assert version is None or each.specifier.contains(version, prereleases=True), f"{each} and {version}"


def test_pythons_that_are_named_are_those_from_the_oldest_that_is_allowed_on() -> None:
    marks = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if name.startswith("Programming Language")]
    assert PROJECT["requires-python"] == f">={marks[0]}"
    assert marks == sorted(marks, key=lambda mark: int(mark.partition(".")[2]))
