"""Three hospitals whose tables, or images, differ, and a survey among them in this process, for tests."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedframe.federation import start
from fedframe.federation import survey as survey_module
from fedframe.federation.agreement import DRAFT, Agreement
from fedframe.federation.create import new_federation
from fedframe.federation.folder import FederationFolder
from fedframe.federation.kit import Kit
from fedframe.federation.survey_node import SurveyNode
from fedframe.jobs.gather import gather
from tests.network.in_process import Clock, InProcessTransport

NAMES = ("north", "south", "west")
Row = dict[str, Any]


def patients(seed: int, count: int, sick: float = 0.3) -> list[Row]:
    """Rows of a hospital: age, sex, ward, a laboratory value with gaps, and whether there was a sepsis."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(count):
        ill = draw.random() < sick
        found.append({
            "patient_id": 70000 + 7 * number + seed,
            "age": int(draw.integers(20, 90)),
            "sex": "" if draw.random() < 0.1 else "fm"[int(draw.integers(2))],
            "ward": ["A", "B", "ICU"][int(draw.integers(3))],
            "crp": "" if draw.random() < 0.2 else round(float(draw.gamma(2, 12) + 35 * ill), 1),
            "outcome": ["no sepsis", "sepsis"][ill],
        })  # fmt: skip
    return found


def write_table(path: Path, rows: Sequence[Row], names: Mapping[str, str | None]) -> str:
    """Write rows as a table, with columns renamed or (None) left out."""
    kept = [name for name in sorted(rows[0], key="outcome".__eq__) if names.get(name, name) is not None]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([names.get(name, name) for name in kept])
        table.writerows([[row[name] for name in kept] for row in rows])
    return f"csv:{path}"


def three_tables(folder: Path, sick: float = 0.3) -> dict[str, str]:
    """North has all; south has no crp, and a lactate that nobody else has; west has other wards and sick children."""
    north, south, west = patients(1, 150, sick), patients(2, 120, sick), patients(3, 90, sick)
    for row in south:
        row["lactate"] = round(float(np.random.default_rng(row["patient_id"]).gamma(4, 0.4)), 2)
    for number, row in enumerate(west):
        row["ward"] = ["A", "paediatrics", "C"][number % 3]
        if number < 3:
            row["outcome"] = "transferred"  # too few to be told of
        if number == 4:
            row["ward"] = "the only one of its kind"
    return {
        "north": write_table(folder / "north.csv", north, {}),
        "south": write_table(folder / "south.csv", south, {"crp": None}),
        "west": write_table(folder / "west.csv", west, {}),
    }


def make_draft(folder: Path, members: Sequence[str] = NAMES, **settings: Any) -> FederationFolder:
    """A federation that waits for its survey."""
    given = {"method": "fedavg", "model": "mlp:8", "rounds": 3, "epochs": 1, "lr": 0.05, **settings}
    asked = gather({name: value for name, value in given.items() if value is not None}, None)
    return new_federation(folder / "clinic", members, ["127.0.0.1"], 9000, DRAFT, asked)


class Asked:
    """A node as the transport calls it."""

    def __init__(self, node: SurveyNode) -> None:
        self.node = node

    def handle(self, payload: bytes) -> tuple[None, None, bytes]:
        return None, None, self.node.handle(payload)


def open_node(made: FederationFolder, name: str, data: str, said: list[str], **options: Any) -> SurveyNode:
    """A node whose people have approved a survey."""
    home = made.path.parent / f"{name}-node"
    node = SurveyNode(Kit.read(made.kit(name)), data, home, said.append, **options)
    said += node.describe_outgoing()
    node.approve(True)
    node.open()
    return node


class Surveyed:
    """A federation whose nodes answer in this process."""

    def __init__(self, folder: Path, data: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.said: dict[str, list[str]] = {name: [] for name in data}
        self.outcome: list[str] = []
        self.made = make_draft(folder, tuple(data), **settings)
        self.nodes = {name: open_node(self.made, name, text, self.said[name]) for name, text in data.items()}
        self.transport = InProcessTransport({name: Asked(node) for name, node in self.nodes.items()})  # type: ignore[misc]
        for module in (survey_module, start):
            monkeypatch.setattr(module, "connect_superlink", lambda folder: None)
            monkeypatch.setattr(module, "SuperLinkTransport", lambda link: self.transport)
        monkeypatch.setattr(survey_module, "time", Clock())

    def survey(self, **options: Any) -> Agreement:
        return survey_module.survey(self.made, self.outcome.append, **options)
