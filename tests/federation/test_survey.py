"""A survey of three hospitals whose data differ makes an agreement, and tells nothing of fewer rows than agreed."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("flwr")

from fedframe.cli.app import app
from fedframe.cli.federation import newest_kit
from fedframe.data import encode_rows
from fedframe.errors import DataError, RunError, SettingError
from fedframe.federation.agreement import DRAFT, Agreement
from fedframe.federation.approval import DIGEST_LENGTH, approved_terms, is_default, settings_digest
from fedframe.federation.audit import canonical, compare, digest_of, verify
from fedframe.federation.join import Limits, Membership
from fedframe.federation.kit import Kit
from fedframe.federation.start import start
from fedframe.federation.survey_data import (
    CELLS,
    REACH,
    clip_extremes,
    histogram,
    median_of,
    merge_cells,
    read_own_data,
)
from fedframe.federation.survey_messages import AGREEMENT, FORM, SurveyRequest, decode_answer
from fedframe.federation.survey_node import SurveyNode, settled_terms, without_columns
from fedframe.federation.survey_plan import MEANS, SPREADS, SurveyPlan, contributions, names_of
from fedframe.runs.predictor import Predictor
from fedframe.settings import Settings
from tests.federation.surveyed import NAMES, Asked, Surveyed, make_draft, open_node, patients, three_tables, write_table

K = 5


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return [*csv.DictReader(file)]


def clipped(values: list[float]) -> list[float]:
    """The rule once more: the K smallest and largest count as the innermost of them; a multiple of K of them counts."""
    low, high = sorted(values)[K - 1], sorted(values)[-K]
    return [min(max(value, low), high) for value in values][: len(values) - len(values) % K]


# -- the whole way -----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_three_tables_that_differ_become_one_agreement_and_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch)
    agreement = clinic.survey()
    columns = agreement.form.columns
    assert columns == (
        "age", "crp", "crp=", "sex=f", "sex=m", "sex=",
        "ward=A", "ward=B", "ward=C", "ward=ICU", "ward=paediatrics",
    )  # fmt: skip
    assert agreement.form.classes == ("no sepsis", "sepsis")
    mean, std = (dict(zip(columns, each.tolist(), strict=True)) for each in (agreement.form.mean, agreement.form.std))
    rows = {name: table_of(tmp_path / f"{name}.csv") for name in NAMES}
    for name in ("age", "crp"):
        told = [
            clipped([float(row[name]) for row in each if row.get(name)]) for each in rows.values() if name in each[0]
        ]
        values = sorted(value for each in told for value in each)
        centre = sum(values) / len(values)
        spread = math.sqrt(sum((value - centre) ** 2 for value in values) / len(values))
        assert std[name] == pytest.approx(spread, rel=1e-5)
        # The median lies within a cell, and cells have at most 3 * (K - 1) rows on the other side than before.
        cell, rank = 2 * REACH * spread / CELLS, 3 * (K - 1)
        low, high = values[len(values) // 2 - rank] - cell, values[len(values) // 2 + rank] + cell
        assert low <= mean[name] <= high
    sexes = [Counter(row["sex"] for row in each) for each in rows.values()]
    counts = {sex: sum(each[sex] - each[sex] % K for each in sexes) for sex in "fm"}
    typical = max(counts, key=lambda sex: (counts[sex], sex))
    assert (mean["sex=f"], mean["sex=m"]) == (float(typical == "f"), float(typical == "m"))
    assert std["sex=f"] == pytest.approx(math.sqrt(counts["f"] * counts["m"]) / (counts["f"] + counts["m"]))
    said = "\n".join(clinic.outcome)
    assert re.search(r"crp +number +all but south +median .* missing 46%", said)
    assert re.search(r"lactate +number +all but north, west +left out", said)
    assert "no sepsis 240, sepsis 115" in said

    start(clinic.made, progress=False)
    run = clinic.made.runs / "1"
    assert json.loads((run / "client_scores.json").read_text())["clients"] == [*NAMES]
    for name, node in clinic.nodes.items():
        kept = Kit.read(tmp_path / f"{name}-node").agreement
        assert kept.text() == agreement.text()
        assert node.member is not None
        assert [*verify(tmp_path / f"{name}-node").faults, *verify(clinic.made.path).faults] == []
    assert "has no column 'crp'" in "\n".join(clinic.said["south"])
    assert "3 samples of the data" in "\n".join(clinic.said["west"])  # those who were transferred
    rows_of_west = [row for row in rows["west"] if row["outcome"] != "transferred"]
    assert len(clinic.nodes["west"].member.federation.source.train) == len(rows_of_west)  # type: ignore[union-attr]
    assert len([*Predictor.load(run).probabilities(FakeFrame(rows["south"]))]) == 120


class FakeFrame:
    """Just enough of a DataFrame."""

    def __init__(self, rows: Any, index: Any = None) -> None:
        table = rows if isinstance(rows, dict) else {name: [row[name] for row in rows] for name in rows[0]}
        self.table: dict[str, list[Any]] = table
        self.columns, self.index, self.iloc = [*self.table], index, None

    def isna(self) -> Any:
        return {name: [value == "" for value in values] for name, values in self.table.items()}

    def __getitem__(self, name: str) -> list[Any]:
        return self.table[name]


def test_what_was_missing_is_the_typical_value_with_an_input_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch).survey().form
    assert form.columns is not None
    place = {name: number for number, name in enumerate(form.columns)}
    full: dict[str, list[object]] = {"age": [50, 50], "crp": [9.5, ""], "sex": ["f", ""], "ward": ["B", "elsewhere"]}
    one, other = encode_rows(full, form.columns, form.mean)
    assert one[[place[name] for name in ("crp", "crp=", "sex=f", "sex=m", "sex=", "ward=B")]].tolist() == [
        9.5, 0.0, 1.0, 0.0, 0.0, 1.0,
    ]  # fmt: skip
    assert float(other[place["crp"]]) == float(form.mean[place["crp"]])
    assert [float(other[place[name]]) for name in ("crp=", "sex=")] == [1.0, 1.0]
    assert [float(other[place[f"sex={each}"]]) for each in "fm"] == [float(form.mean[place[f"sex={e}"]]) for e in "fm"]
    assert float(other[[number for name, number in place.items() if name.startswith("ward=")]].sum()) == 0
    without = {name: values for name, values in full.items() if name not in ("crp", "sex")}
    lacking = encode_rows(without, form.columns, form.mean)
    assert lacking[1].equal(other)
    with pytest.raises(DataError, match="lacks the column 'age'"):
        encode_rows({"crp": [1], "sex": ["f"], "ward": ["A"]}, form.columns, form.mean)


# -- what leaves -------------------------------------------------------------------------------------------------------
def messages(clinic: Surveyed) -> dict[str, list[tuple[SurveyRequest, bytes]]]:
    """All questions and answers, by member."""
    found: dict[str, list[tuple[SurveyRequest, bytes]]] = {name: [] for name in clinic.nodes}
    for name, asked in clinic.transport.known.items():
        plain = asked.handle

        def handle(payload: bytes, name: str = name, plain: Any = plain) -> Any:
            answer = plain(payload)
            found[name].append((SurveyRequest.from_bytes(payload), answer[2]))
            return answer

        asked.handle = handle  # type: ignore[method-assign, assignment]
    return found


def test_what_leaves_is_what_was_printed_and_single_parts_of_sums_are_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch)
    printed = {name: "\n".join(lines) for name, lines in clinic.said.items()}
    found = messages(clinic)
    clinic.survey()
    for name, exchanged in found.items():
        assert [request.stage for request, _ in exchanged] == [FORM, MEANS, SPREADS, "agreement"]
        body, _ = decode_answer(exchanged[0][1], exchanged[0][0], None)
        assert set(body) == {"kind", "classes", "least", "label", "columns", "key"}
        for column, told in body["columns"].items():
            assert set(told) in ({"kind", "scale", "codes"}, {"kind", "values"}, {"kind"})
            assert f"column {column}: " in printed[name]
        for column in ("sex", "ward"):
            values = ", ".join(body["columns"][column]["values"])
            assert f"column {column}: texts that many rows have: {values}" in printed[name]
        plan = SurveyPlan.from_json(exchanged[1][0].body["plan"])
        for request, answer in exchanged[1:3]:
            around = [tuple(each) for each in request.body.get("around", ())]
            names = names_of(plan, request.stage)
            own = contributions(clinic.nodes[name].own, plan, request.stage, around)
            body, vector = decode_answer(answer, request, len(names))
            assert (body, vector is None) == ({}, False)
            assert vector is not None
            plain = np.rint(np.array(own) * 2.0**36).astype(np.int64).view(np.uint64)
            # Under masks no number shows: not one is as it is, and the bits of their differences are balanced.
            ones = np.unpackbits((vector - plain).view(np.uint8)).mean()
            assert not (vector == plain).any()
            assert 0.45 < ones < 0.55
            log = (tmp_path / f"{name}-node" / "leaves.log").read_text()
            for what, value in zip(names, own, strict=True):
                assert json.dumps({what: value})[1:-1] in log
        left = [each for each in verify(tmp_path / f"{name}-node").records if each["event"] == "survey left"]
        assert [each["stage"] for each in left] == [FORM, MEANS, SPREADS, AGREEMENT]
        assert len(compare(verify(tmp_path / f"{name}-node"), verify(clinic.made.path))) == 1  # nothing that differs
        assert left[0]["said"]["columns"]["sex"] == {"kind": "category", "values": ["f", "m"]}


def hidden_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same hospital with four patients who are like no other: of each kind fewer than K."""
    changed = [dict(row) for row in rows]
    for number in range(K - 1):
        changed[number] |= {"ward": "isolation", "crp": 10**6 + number, "outcome": "a crime"}
    return changed


def test_nothing_is_told_of_fewer_rows_than_agreed(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for seed in range(8):
        rows = patients(seed, int(draw.integers(60, 140)))
        data = write_table(tmp_path / f"{seed}.csv", hidden_rows(rows), {"patient_id": None})
        own = read_own_data(data, K, "outcome")
        told = json.dumps(own.form())
        assert "isolation" not in told
        assert "crime" not in told
        assert own.numbers["crp"].scale <= 8  # not a million
        plan = SurveyPlan(
            "table", ("a crime", "no sepsis", "sepsis"), (("age", 7), ("crp", 21)),
            (("ward", ("A", "B", "ICU", "isolation")), ("sex", ("f", "m"))),
        )  # fmt: skip
        means = dict(zip(names_of(plan, MEANS), contributions(own, plan, MEANS, []), strict=True))
        assert means["class a crime"] == means["ward=isolation"] == 0
        for name, value in means.items():
            if not name.startswith(("sum", "squares")):
                assert value % K == 0, name
        assert means["sum of crp"] * 2**21 < 1000 * means["rows of crp"]
        around = [(0.4, 0.1), (0.0, 1e-6)]
        cells = [
            value
            for name, value in zip(names_of(plan, SPREADS), contributions(own, plan, SPREADS, around), strict=True)
            if name.startswith("cell")
        ]
        assert len(cells) == 2 * CELLS
        assert all(value == 0 or value >= K for value in cells)
        assert sum(cells) == means["rows of age"] + means["rows of crp"]


def test_a_node_may_raise_the_number_and_not_lower_it(tmp_path: Path) -> None:
    data = write_table(tmp_path / "own.csv", patients(1, 100), {"patient_id": None})
    own = read_own_data(data, 20, "outcome")
    assert all(count % 20 == 0 for count in own.class_counts(own.classes))
    made = make_draft(tmp_path)
    with pytest.raises(SettingError, match="use 5 or more"):
        open_node(made, "north", data, [], least=4)
    small = write_table(tmp_path / "small.csv", patients(1, 9), {"patient_id": None})
    with pytest.raises(DataError, match="a survey tells of no fewer"):
        read_own_data(small, K, "outcome")


# -- consent -----------------------------------------------------------------------------------------------------------
def test_without_approval_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, data = make_draft(tmp_path), three_tables(tmp_path)
    node = SurveyNode(Kit.read(made.kit("north")), data["north"], tmp_path / "north-node", print)
    asked: list[str] = []
    with pytest.raises(SettingError, match=r"nobody here has approved the report above; .*--yes"):
        node.approve(False, ask=lambda question: bool(asked.append(question)))  # type: ignore[func-returns-value]
    assert asked == ["Report this to the organiser of clinic at 127.0.0.1:9000?"]
    assert not (tmp_path / "north-node").exists()


def test_a_survey_is_answered_once_and_the_same_question_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch)
    found = messages(clinic)
    clinic.transport.away = set()
    clinic.survey()
    north, exchanged = clinic.nodes["north"], found["north"]
    for request, answer in exchanged[1:3]:  # after restarts too: what was answered is on the disk
        again = SurveyNode(Kit.read(tmp_path / "north-node"), north.data, tmp_path / "north-node", print)
        again.masker = north.masker
        assert again.handle(request.to_bytes()) == north.handle(request.to_bytes()) == answer
    request = exchanged[2][0]
    narrow = {**request.body, "around": [[0.5, 1e-6] for _ in request.body["around"]]}
    refusals = [
        (SurveyRequest(request.survey, SPREADS, narrow), "answered here for another question"),
        (SurveyRequest("another", FORM, {}), "has an agreement already"),
    ]
    for asked, why in refusals:
        body, _ = decode_answer(north.handle(asked.to_bytes()), asked, None)
        assert why in body["refused"]
    assert [each["event"] for each in verify(tmp_path / "north-node").records].count("survey refused") == 2


def test_one_approval_is_for_one_survey_and_a_sum_for_all_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch)
    north = clinic.nodes["north"]

    def refused(asked: SurveyRequest) -> str:
        return str(decode_answer(north.handle(asked.to_bytes()), asked, None)[0].get("refused"))

    form = SurveyRequest("one", FORM, {})
    assert "refused" not in decode_answer(north.handle(form.to_bytes()), form, None)[0]
    assert "have approved one survey" in refused(SurveyRequest("two", FORM, {}))
    assert north.masker is not None
    plan = SurveyPlan("table", ("no sepsis", "sepsis"), (("age", 7),))
    keys = [north.masker.public, "22" * 64, "33" * 64]
    for body, why in (
        ({"plan": plan.to_json(), "keys": keys[:1]}, "over all members"),
        ({"plan": plan.to_json(), "keys": keys[::-1]}, "another key of this node"),
        ({"plan": {**plan.to_json(), "numbers": [["age", 1]]}, "keys": keys}, "scale that this node's numbers exceed"),
        ({"plan": {**plan.to_json(), "kind": "images"}, "keys": keys}, "this node has a table"),
        ({"plan": {}, "keys": keys}, "cannot be read"),
    ):
        assert why in refused(SurveyRequest("one", MEANS, body))
    spread = {"plan": plan.to_json(), "keys": keys, "around": [[0.5, 0.1]]}
    assert "something else than the means before" in refused(SurveyRequest("one", SPREADS, spread))
    assert "stage 'rows'" in refused(SurveyRequest("one", "rows", {}))
    with pytest.raises(DataError, match="waits for the survey's agreement"):
        north.handle(plain_request())


def plain_request() -> bytes:
    from fedframe.core.message import Message
    from fedframe.network.node_request import HELLO, NodeRequest

    return NodeRequest("run1", Message(HELLO, 0), {HELLO: [0]}).to_bytes()


def test_what_follows_from_the_data_is_worked_out_at_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_settings = {"model": "auto", "lr": None, "lr_per_class": 0.01}
    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch, **open_settings)
    agreement = clinic.survey()
    assert (agreement.settings.lr, agreement.settings.model != "auto") == (0.02, True)
    draft = replace(agreement, form=DRAFT, settings=gather_open(agreement))
    assert "lr" in settled_terms(draft, agreement)
    other = replace(agreement, settings=agreement.settings.model_copy(update={"model": "mlp:9"}))
    assert settled_terms(draft, other) == ("data",)


def gather_open(agreement: Agreement) -> Settings:
    """The settings of an agreement as its draft had them."""
    return agreement.settings.model_copy(update={"model": "auto", "lr_per_class": 0.01, "lr": 0.1})


def test_an_agreement_that_changes_more_than_the_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An organiser who uses the survey to slip in other settings."""
    from fedframe.federation import survey as module

    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch)
    plain = module.settle

    def slip(*given: Any) -> Any:
        findings, agreement = plain(*given)
        return findings, replace(agreement, settings=agreement.settings.model_copy(update={"lr": 9.0}))

    monkeypatch.setattr(module, "settle", slip)
    with pytest.raises(RunError, match=r"north does not answer \(agreement\): its people have not approved that"):
        clinic.survey()
    assert "lr is 9.0 (was 0.05)" in "\n".join(clinic.said["north"])
    assert Kit.read(tmp_path / "north-node").agreement.is_draft


# -- cut off, refused, in doubt ----------------------------------------------------------------------------------------
def test_a_node_that_approves_by_digest_approves_what_the_survey_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = three_tables(tmp_path)
    clinic = Surveyed(tmp_path, data, monkeypatch)
    draft = settings_digest(clinic.made.agreement())

    def join_north(digest: str) -> None:
        clinic.nodes["north"].lock.release()  # type: ignore[union-attr]
        kit = newest_kit(Kit.read(clinic.made.kit("north")), tmp_path / "north-node")
        node = SurveyNode(kit, data["north"], tmp_path / "north-node", print, limits=Limits(approve=digest))
        node.approve(True)
        node.open()
        clinic.nodes["north"] = node
        clinic.transport.known["north"] = Asked(node)  # type: ignore[assignment]

    join_north(draft)
    with pytest.raises(RunError, match="north"):
        clinic.survey()
    made = approved_terms(tmp_path / "south-node")
    assert made is not None
    terms = {name: value for name, value in made.items() if not is_default(name, value)}
    digest = digest_of(canonical(terms))[:DIGEST_LENGTH]
    assert digest != draft
    join_north(digest)
    assert settings_digest(clinic.survey()) == digest
    assert approved_terms(tmp_path / "north-node") == made


def test_a_survey_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedframe.federation import survey as module

    clinic, found = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch), None
    found = messages(clinic)
    with monkeypatch.context() as patch:
        patch.setattr(module, "make_form", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            clinic.survey()
    with pytest.raises(SettingError, match="no agreement on data yet; make it with: fedframe federation survey"):
        start(clinic.made, progress=False)
    agreement = clinic.survey()
    assert len(found["north"]) == 7
    left = [each for each in verify(tmp_path / "north-node").records if each["event"] == "survey left"]
    assert [each.get("again", False) for each in left] == [False] * 3 + [True] * 3 + [False]
    assert [answer for _, answer in found["north"][:3]] == [answer for _, answer in found["north"][3:6]]
    assert clinic.survey().text() == agreement.text()  # members who missed the end get it again
    assert clinic.made.agreement().surveyed == K


def test_the_kit_of_before_the_survey_goes_on_with_the_agreement_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch)
    drafts = {name: Kit.read(clinic.made.kit(name)) for name in ("north", "south")}
    home = tmp_path / "north-node"
    assert newest_kit(drafts["north"], home).agreement.is_draft
    agreement = clinic.survey()
    assert newest_kit(drafts["north"], home).agreement.text() == agreement.text()
    assert newest_kit(drafts["south"], home).agreement.is_draft  # another node's folder settles nothing
    assert newest_kit(Kit.read(clinic.made.kit("north")), home).agreement.text() == agreement.text()


def test_who_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic = Surveyed(tmp_path, three_tables(tmp_path), monkeypatch)
    clinic.transport.away = {"west"}
    plain = clinic.transport.nodes

    def nodes() -> Any:
        if any("waiting for west" in line for line in clinic.outcome):
            clinic.transport.away = set()
        return plain()

    monkeypatch.setattr(clinic.transport, "nodes", nodes)
    clinic.survey()
    assert "Survey, form: waiting for west." in clinic.outcome


@pytest.mark.parametrize(
    ("settled", "median"), [(False, "all but south"), (True, "all  ")], ids=["as it is", "settled by an option"]
)
def test_a_column_that_cannot_be_read_counts_as_missing_unless_that_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: bool, median: str
) -> None:
    data = three_tables(tmp_path)
    south = patients(2, 120)
    for number, row in enumerate(south):
        row["crp"] = "<0.5" if number % 3 == 0 else row["crp"]
    data["south"] = write_table(tmp_path / "south.csv", south, {}) + ("?numeric=crp" if settled else "")
    clinic = Surveyed(tmp_path, data, monkeypatch)
    assert ("use --numeric crp" in "\n".join(clinic.said["south"])) != settled
    clinic.survey()
    assert ("south must say how 'crp' is read" in "\n".join(clinic.outcome)) != settled
    assert any(re.search(rf"crp +number +{median}", line) for line in clinic.outcome)
    used = without_columns(data["south"], tmp_path / "south-node")
    assert ("drop=" in used) != settled
    member = Membership(Kit.read(tmp_path / "south-node"), used, tmp_path / "south-node")
    place = member.federation.source.columns.index("crp=")  # type: ignore[union-attr]
    missing = member.federation.source.train.x.take(torch.arange(120))[:, place]
    assert bool(missing.all()) != settled


def test_the_options_that_messages_name_are_those_of_the_command(tmp_path: Path) -> None:
    kit, data = str(make_draft(tmp_path).kit("north")), three_tables(tmp_path)["north"]
    command = ["federation", "join", kit, "--data", data, "--out", str(tmp_path / "node"), "--check"]
    before, after = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--drop", "patient_id"]))
    assert "Leave it out with --drop patient_id" in " ".join(before.output.split())
    assert after.exit_code == 0
    assert "column age" in after.output
    assert "patient_id" not in after.output


def test_data_of_different_kinds_and_classes_that_look_alike_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = three_tables(tmp_path)
    rows = [{**row, "outcome": str(row["outcome"]).title()} for row in patients(2, 120)]
    data["south"] = write_table(tmp_path / "south.csv", rows, {})
    (tmp_path / "one").mkdir()
    clinic = Surveyed(tmp_path / "one", data, monkeypatch)
    clinic.survey()
    assert any(
        "'Sepsis' (south) and 'sepsis' (north, west) are taken as different classes" in t for t in clinic.outcome
    )
    np.savez(tmp_path / "west.npz", x=np.zeros((30, 4), np.float32) + np.arange(30)[:, None], y=np.arange(30) % 2)
    (tmp_path / "two").mkdir()
    clinic = Surveyed(tmp_path / "two", {**data, "west": f"npz:{tmp_path / 'west.npz'}"}, monkeypatch)
    with pytest.raises(RunError, match="north has a table; south has a table; west has arrays"):
        clinic.survey()


# -- images and arrays -------------------------------------------------------------------------------------------------
def scans(folder: Path, seed: int, size: tuple[int, int], colour: bool, count: int = 24) -> str:
    from PIL import Image

    draw = np.random.default_rng(seed)
    for kind in ("benign", "malignant"):
        (folder / kind).mkdir(parents=True)
        for number in range(count // 2):
            pixels = draw.normal(90 + 50 * (kind == "malignant"), 20, (*size, 3) if colour else size)
            Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / kind / f"{number}.png")
    return f"imagefolder:{folder}"


def test_three_sets_of_images_that_differ_become_one_agreement_and_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    data = {
        "north": scans(tmp_path / "n", 1, (20, 24), colour=False),
        "south": scans(tmp_path / "s", 2, (16, 32), colour=True),
        "west": scans(tmp_path / "w", 3, (40, 40), colour=False),
    }
    clinic = Surveyed(tmp_path, data, monkeypatch, model="auto")
    agreement = clinic.survey()
    form = agreement.form
    assert (form.shape, form.classes, form.columns) == ((16, 24, 3), ("benign", "malignant"), None)
    pixels = np.concatenate([
        node.own.load(form.shape).train.x.take(torch.arange(24)).numpy().reshape(-1, 3)
        for node in clinic.nodes.values()
    ]).astype(np.float64)  # fmt: skip
    # 20 of each 24 count: spread over all of them, not the first ones, so the two are close and not the same
    assert form.mean.numpy() == pytest.approx(pixels.mean(0), rel=0.1)
    assert form.std.numpy() == pytest.approx(pixels.std(0), rel=0.15)
    assert agreement.settings.model != "auto"  # what the draft left open is settled, too
    assert "Images are agreed to be 16x24, colour." in clinic.outcome
    assert any(re.search(r"west +40x40, grey +is scaled", line) for line in clinic.outcome)
    start(clinic.made, progress=False)
    assert (clinic.made.runs / "1" / "summary.json").exists()


def test_arrays_of_one_shape_get_their_exact_normalisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, kept = {}, []
    for seed, name in enumerate(NAMES):
        x = np.random.default_rng(seed).normal((1e3, 0, -2), (5, 1e-2, 3), (40, 3)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.array(["a", "b"])[np.arange(40) % 2])
        data[name] = f"npz:{tmp_path / name}.npz"
        kept.append(x.astype(np.float64))
    clinic = Surveyed(tmp_path, data, monkeypatch)
    form = clinic.survey().form
    every = np.concatenate(kept)
    assert form.mean.numpy() == pytest.approx(every.mean(0), rel=1e-3, abs=1e-4)
    assert form.std.numpy() == pytest.approx(every.std(0), rel=1e-3)


def test_a_description_beside_a_survey_and_a_survey_beside_a_description_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedframe.federation import survey as module
    from tests.federation.clinic import make_clinic

    made, _ = make_clinic(tmp_path, monkeypatch)
    with pytest.raises(SettingError, match="a survey is for a federation that is made without one"):
        module.survey(made, print)
    draft = make_draft(tmp_path / "other")
    assert Agreement.read(draft.agreement().text(), "it").is_draft
    assert "before its agreement" in (draft.path / "GUIDE.md").read_text()
    with pytest.raises(SettingError, match="its organiser makes one by a survey"):
        Membership(Kit.read(draft.kit("north")), "digits", tmp_path / "node")


# -- the rules by themselves -------------------------------------------------------------------------------------------
@given(counts=st.lists(st.integers(0, 12), min_size=1, max_size=40), least=st.integers(1, 9))
def test_cells_are_empty_or_large_and_hardly_any_row_changes_sides(counts: list[int], least: int) -> None:
    before = np.array(counts, np.int64)
    after = merge_cells(before, least)
    assert all(count == 0 or count >= least for count in after.tolist())
    if before.sum() >= least:
        assert after.sum() == before.sum()
        assert np.abs(after.cumsum() - before.cumsum()).max() < least
    else:
        assert not after.any()


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=10, max_size=60),
    least=st.integers(5, 5),
    others=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=4),
)
def test_what_fewer_rows_hold_changes_no_bound(values: list[float], least: int, others: list[float]) -> None:
    """Whatever fewer than K rows hold beyond the rest, no clipped value lies beyond what the rest hold."""
    every = clip_extremes(np.array([*values, *others, np.nan]), least)
    here = every[~np.isnan(every)]
    assert min(values) <= here.min()
    assert here.max() <= max(values)
    assert np.isnan(every).sum() == 1


@given(st.lists(st.floats(-50, 50), min_size=40, max_size=400))
def test_the_median_of_a_histogram_is_within_a_cell_of_the_real_one(values: list[float]) -> None:
    centre, width = float(np.mean(values)), max(float(np.std(values)), 1e-3)
    found = median_of(histogram(np.array(values), centre, width, 1).astype(np.float64), centre, width)
    cell = 2 * REACH * width / CELLS
    ordered = sorted(values)
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    assert low - cell * 1.001 <= found <= high + cell * 1.001
