"""Imbalance in a federation: said before the first round, and `metric = auto` follows it as in a run on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedframe.analysis.model_card import model_card
from fedframe.core.imbalance import BALANCED, CLASSES, METRIC
from fedframe.core.message import Message
from fedframe.errors import ProtocolError
from fedframe.experiments.gain import gain
from fedframe.federation import start
from fedframe.federation.folder import FederationFolder
from fedframe.federation.survey import class_lines
from fedframe.network.envelope import decode_envelope
from fedframe.network.node_request import NodeRequest
from fedframe.runs.federated import NOTES
from fedframe.runs.folder import RunFolder
from fedframe.runs.predictor import Predictor
from fedframe.util.files import read_json, write_json
from tests.federation.clinic import CLASSES as NAMES_OF_CLASSES
from tests.federation.clinic import NAMES, make_clinic
from tests.federation.together import run_together
from tests.helpers import Recorder, comparable_scores
from tests.network.in_process import InProcessTransport

pytestmark = pytest.mark.slow


def write_rare(path: Path, seed: int, count: int = 80) -> str:
    """Three classes, of which one has nine in ten samples."""
    draw = np.random.default_rng(seed)
    y = np.where(np.arange(count) % 10, 2, np.arange(count) // 10 % 2)
    x = np.random.default_rng(0).normal(0, 3, (3, 6))[y] + draw.normal(0, 1, (count, 6))
    np.savez(path, x=x.astype(np.float32), y=np.array(NAMES_OF_CLASSES)[y])
    return f"npz:{path}"


class Ordered(Recorder):
    """Also keeps after how many rounds something was said."""

    def __init__(self) -> None:
        super().__init__()
        self.after: list[int] = []

    def note(self, text: str) -> None:
        super().note(text)
        self.after.append(len(self.rounds))

    def before_rounds(self, text: str) -> bool:
        return self.after[self.notes.index(text)] == 0


def train(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tell: Sequence[str] = (), **settings: Any
) -> tuple[FederationFolder, InProcessTransport, dict[str, set[str]], Ordered]:
    """A training, and which tensors left nodes for each kind of work."""
    made, transport = make_clinic(folder, monkeypatch, tell, write=write_rare, **settings)
    kinds: dict[str, set[str]] = {}

    def watch(node: str, content: bytes) -> bytes:
        for reply in decode_envelope(content)[0]:
            kinds.setdefault(reply.kind, set()).update(reply.tensors)
        return content

    transport.spoil = watch
    seen = Ordered()
    start.start(made, progress=seen)
    return made, transport, kinds, seen


@pytest.mark.parametrize("secure", [False, True])
def test_the_majority_is_named_before_the_first_round_and_scores_follow_as_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    made, _, kinds, seen = train(tmp_path, monkeypatch, secure=secure)
    here, run = run_together(tmp_path), RunFolder(made.runs / "1")
    said = [note for note in seen.notes if "majority" in note]
    assert len(said) == 1  # and not again at the end
    assert said == [text.partition(" ")[2].partition(" ")[2] for text in _log(here) if "majority" in text]
    assert seen.before_rounds(said[0])
    assert run.settings().metric == read_json(here.path / "summary.json")["metric"] == BALANCED
    if secure:
        assert kinds[CLASSES] == {"masked", "shares"}  # what one node has is not seen
    else:
        assert kinds[CLASSES] == {CLASSES}
        assert comparable_scores(run.path) == comparable_scores(here.path)
    local = read_json(here.path / "summary.json")["scores"]
    far = read_json(run.path / "summary.json")["scores"]
    for score in ("client", "personal"):
        assert far[score]["final"] == pytest.approx(local[score]["final"], abs=1e-6)
    for name in NAMES:
        own = RunFolder(next((tmp_path / f"{name}-node/runs").iterdir()))
        assert own.settings().metric == read_json(own.path / "summary.json")["metric"] == BALANCED


def _log(run: RunFolder) -> list[str]:
    return (run.path / "log.txt").read_text().splitlines()


def test_a_node_says_it_of_its_own_data_and_what_it_gains_is_in_the_same_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, transport, _, _ = train(tmp_path, monkeypatch, tell=("north",))
    member = transport.known["north"].member  # type: ignore[attr-defined]
    assert any(
        "% of this node's test samples are 'c': the majority class alone would score" in t for t in member.check()
    )
    assert any("how many of this node's test samples each class has" in text for text in member.describe_outgoing())
    row = read_json(made.runs / "1/gain.json")["clients"][0]
    assert row["gain"]["value"] == pytest.approx(row["personal"]["value"] - row["alone"]["value"])
    (run,) = (tmp_path / "north-node/runs").iterdir()
    again = gain(run, progress=False)
    assert again["metric"] == BALANCED
    assert again["clients"][0]["alone"] == pytest.approx(row["alone"])
    for folder, owner in ((made.runs / "1", None), (run, "north")):
        card = model_card(RunFolder(folder), Predictor.load(folder, client=owner), owner, "model.pt2", "")
        assert "3 sites. They were not pooled: each site trained on its own" in card
        assert "### By site" in card
        assert "client" not in card.replace("`client`", "").replace("| client |", "")  # what a score is called
        assert owner is None or "# The own model of north" in card


PRIVATE = {"privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_at": "node", "weighting": "uniform"}


@pytest.mark.parametrize(("settings", "surveyed"), [({"score_bins": 0}, False), (PRIVATE, True)])
def test_where_no_counts_may_leave_only_a_survey_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], surveyed: bool
) -> None:
    if "privacy_clip" in settings:
        pytest.importorskip("dp_accounting")
    known = {"classes": {"a": 10, "b": 10, "c": 200}}
    monkeypatch.setattr(start, "OUTCOME", "told.json")
    original = start.ask_members

    def ask(*given: Any) -> Any:
        if surveyed:
            write_json(tmp_path / "clinic/state/told.json", known)
        return original(*given)

    monkeypatch.setattr(start, "ask_members", ask)
    made, transport, kinds, seen = train(tmp_path, monkeypatch, **settings)
    assert CLASSES not in kinds
    metric = BALANCED if surveyed else "accuracy"
    assert RunFolder(made.runs / "1").settings().metric == metric
    assert any("majority" in note for note in seen.notes) is surveyed
    node = transport.known["north"].member  # type: ignore[attr-defined]
    assert not any("each class has" in text for text in node.describe_outgoing())
    (run,) = (tmp_path / "north-node/runs").iterdir()
    assert read_json(run / "summary.json")["metric"] == metric
    assert any("nodes do not tell how frequent" in note for note in seen.notes) is not surveyed


def test_a_run_that_an_earlier_version_has_begun_goes_on_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, transport = make_clinic(tmp_path, monkeypatch, write=write_rare)
    with monkeypatch.context() as patch:  # the organiser of before: it asks nothing, and is killed after a round
        patch.setattr(start, "settle_metric", lambda *given: None)
        patch.setattr("fedframe.runs.session.Session.finish_round", _stopped)
        with pytest.raises(KeyboardInterrupt):
            start.start(made, progress=False)
    path = made.runs / "1" / NOTES
    notes = read_json(path)
    notes.pop("test_samples_by_class")
    write_json(path, notes)
    assert RunFolder(made.runs / "1").settings().metric == "auto"
    transport.sent.clear()
    start.start(made, progress=False)
    assert 0 not in {round for _, round in transport.sent[len(NAMES) :]}  # but for the first "who are you"
    assert read_json(made.runs / "1/summary.json")["metric"] == "accuracy"


_finish = __import__("fedframe.runs.session", fromlist=["Session"]).Session.finish_round


def _stopped(self: Any, record: Any) -> None:
    _finish(self, record)
    raise KeyboardInterrupt


def test_a_training_that_was_cut_off_goes_on_in_its_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch, write=write_rare)
    with monkeypatch.context() as patch:
        patch.setattr("fedframe.runs.session.Session.finish_round", _stopped)
        with pytest.raises(KeyboardInterrupt):
            start.start(made, progress=False)
    seen = Recorder()
    start.start(made, progress=seen)
    assert any("Scores of this run are balanced accuracy" in note for note in seen.notes)
    assert read_json(made.runs / "1/summary.json")["metric"] == BALANCED


@pytest.mark.parametrize(
    ("agreed", "asked", "then", "says"),
    [
        ("auto", "auroc", None, "is not agreed"),
        ("accuracy", BALANCED, None, "is not agreed"),
        ("auto", BALANCED, None, "a run has one"),
        ("auto", None, BALANCED, "a run has one"),
    ],
)
def test_a_node_takes_no_metric_but_the_two_that_auto_stands_for_and_one_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agreed: str, asked: str | None, then: str | None, says: str
) -> None:
    _, transport = make_clinic(tmp_path, monkeypatch, write=write_rare, metric=agreed)
    member = transport.known["north"].member  # type: ignore[attr-defined]
    job, number = member.maker.make(tmp_path), member.kit.number
    model = job.roles.layout.flatten(dict(job.template.named_parameters()))

    def ask(metric: str | None, count: int) -> None:
        numbers = {"lr": job.settings.lr} | ({METRIC: metric} if metric else {})
        request = Message("client", 1, -1, {"model": model}, numbers)
        transport.known["north"].handle(NodeRequest("run1", request, {"client": [number]}, {}, None, count).to_bytes())

    if says == "a run has one":
        ask(asked, 1)
        asked = then
    with pytest.raises(ProtocolError, match=says):
        ask(asked, 2)


def test_counts_are_asked_for_before_the_first_round_and_not_where_none_were_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, transport = make_clinic(tmp_path, monkeypatch, write=write_rare, score_bins=0)
    member = transport.known["north"].member  # type: ignore[attr-defined]

    def ask(round: int) -> None:
        request = Message(CLASSES, round, numbers={"lr": member.settings.lr})
        tasks = {CLASSES: [member.kit.number]}
        transport.known["north"].handle(NodeRequest("run1", request, tasks, {}, None, round + 1).to_bytes())

    with pytest.raises(ProtocolError, match="is no work of this agreement"):
        ask(0)
    with pytest.raises(ProtocolError, match="is not asked in round 1"):
        ask(1)


def test_a_survey_says_it_at_once() -> None:
    lines = class_lines({"sick": 10, "well": 190})
    assert lines[1] == "95.0 % of the rows are 'well': the majority class alone would score 95.0 % in accuracy."
    assert len(class_lines({"sick": 40, "well": 160})) == 1
