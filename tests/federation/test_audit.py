"""The audit log: a chain that holds, and whatever is changed, removed, moved or cut off is found and named."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from typer.testing import CliRunner

from fedframe.cli.app import app
from fedframe.core.message import Message
from fedframe.errors import DataError, RunError, SettingError
from fedframe.federation.audit import HEAD, LOG, AuditLog, Head, canonical, check_head, compare, describe, verify
from fedframe.federation.join import report_faults
from fedframe.federation.start import start
from fedframe.network.node_request import HELLO, NodeRequest
from tests.federation.clinic import make_clinic

LINES = 7


@pytest.fixture
def log(tmp_path: Path) -> Path:
    made = AuditLog(tmp_path)
    for number in range(LINES):
        made.add("left", run="a1", round=number, bytes=100 + number, digest="00" * 32, kinds=["train"])
    return tmp_path


def lines(folder: Path) -> list[bytes]:
    return (folder / LOG).read_bytes().splitlines()


def put(folder: Path, changed: list[bytes]) -> None:
    (folder / LOG).write_bytes(b"".join(line + b"\n" for line in changed))


def faults(folder: Path) -> list[str]:
    return verify(folder).faults


def chain_by_hand(folder: Path) -> bool:
    """The rule of the format, written down once more: any program can check it."""
    before = "0" * 64
    for number, line in enumerate(lines(folder), 1):
        record = json.loads(line)
        plain = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        if (record["number"], record["before"], plain) != (number, before, line):
            return False
        before = hashlib.sha256(line).hexdigest()
    return (folder / HEAD).read_text().strip() == f"{len(lines(folder))}:{before}"


def test_a_log_that_was_left_alone_holds_over_restarts(log: Path) -> None:
    assert chain_by_hand(log)
    AuditLog(log).add("joined")
    one, other = AuditLog(log), AuditLog(log)  # two processes, in turn
    for number in range(3):
        one.add("left", bytes=number)
        other.add("arrived", bytes=number)
    assert chain_by_hand(log)
    assert (faults(log), len(lines(log))) == ([], LINES + 7)
    assert (log / LOG).stat().st_mode & 0o777 == 0o600


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_one_changed_byte_is_found_and_its_line_is_named(
    tmp_path_factory: pytest.TempPathFactory, place: float, flip: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    made = AuditLog(folder)
    for number in range(4):
        made.add("left", run="a1", round=number, bytes=100, digest="0f" * 8, kinds=["train"])
    content = bytearray((folder / LOG).read_bytes())
    at = int(place * len(content))
    content[at] ^= flip
    (folder / LOG).write_bytes(content)
    line = bytes(made.path.read_bytes())[: at + 1].count(b"\n") + (content[at] != 10)
    if content[at] ^ flip == 10 or content[at] == 10:  # lines were joined or parted: any of the two
        assert faults(folder)
    else:
        assert any(f"line {line} was changed" in text for text in faults(folder)), faults(folder)
    assert "is not as it was written" in describe(folder, verify(folder))[-1]


@pytest.mark.parametrize("key", ["bytes", "kinds", "digest", "round", "run"])
@pytest.mark.parametrize("value", [None, "text", [1], {"a": 1}])
def test_what_is_left_of_a_changed_line_is_listed_all_the_same(log: Path, key: str, value: object) -> None:
    content = lines(log)
    record = json.loads(content[2])
    record[key] = value
    put(log, [*content[:2], canonical(record), *content[3:]])
    *listed, last = describe(log, verify(log))
    assert len(listed) == LINES + 1
    assert "line 3 was changed" in last


@pytest.mark.parametrize("line", range(1, LINES + 1))
def test_a_line_that_is_written_anew_is_named(log: Path, line: int) -> None:
    """Not a slip of the disk but a lie: another number of bytes, in a line that is well formed."""
    found = lines(log)
    found[line - 1] = found[line - 1].replace(b'"bytes":10', b'"bytes":90')
    put(log, found)
    assert faults(log) == [f"line {line} was changed"]


def test_a_line_with_another_predecessor_is_the_one_that_was_changed(log: Path) -> None:
    found = lines(log)
    record = json.loads(found[3])
    found[3] = json.dumps({**record, "before": "ab" * 32}, sort_keys=True, separators=(",", ":")).encode()
    put(log, found)
    assert faults(log) == ["line 4 was changed"]


@pytest.mark.parametrize("line", range(1, LINES))
def test_a_removed_line_is_named(log: Path, line: int) -> None:
    found = lines(log)
    del found[line - 1]
    put(log, found)
    assert f"line {line} was removed" in faults(log)


def test_lines_in_another_order_or_twice_are_named(log: Path) -> None:
    found = lines(log)
    put(log, [*found[:2], found[3], found[2], *found[4:]])
    assert faults(log) == ["line 3 was moved: it stands behind line 4"]
    put(log, [*found[:3], found[2], *found[3:]])
    assert "line 3 is there 2 times" in faults(log)


def test_an_end_that_was_cut_off_is_named_and_stays_named(log: Path) -> None:
    put(log, lines(log)[:-2])
    assert faults(log) == [f"2 lines after line {LINES - 2} were cut off"]
    AuditLog(log).add("joined")  # a new line does not hide it, though head and log fit again
    assert len(faults(log)) == 1
    assert f"2 lines after line {LINES - 2} were cut off" in faults(log)[0]
    (log / LOG).unlink()
    assert faults(log) == [f"{LINES} lines after line 0 were cut off"]


def test_without_its_second_file_a_log_is_not_whole(log: Path) -> None:
    (log / HEAD).unlink()
    assert "audit.head is missing" in faults(log)[0]


def test_a_head_that_was_noted_finds_a_log_that_was_made_anew(log: Path) -> None:
    noted = verify(log).head
    put(log, [])
    (log / LOG).unlink()
    (log / HEAD).unlink()
    made = AuditLog(log)
    for number in range(LINES):
        made.add("left", round=number)
    assert verify(log).faults == []  # what the files alone cannot show
    assert verify(log, check_head(str(noted))).faults == [
        f"line {LINES} is not the one whose head was noted: the log was rewritten, or cut off"
    ]
    assert verify(log, verify(log).head).faults == []
    with pytest.raises(SettingError, match="write NUMBER:HASH"):
        check_head("7")


@pytest.mark.parametrize("left", [1, 60])
def test_a_line_that_was_cut_off_by_a_kill_is_taken_away_and_said(log: Path, left: int) -> None:
    with (log / LOG).open("ab") as file:
        file.write(lines(log)[-1][:left])
    AuditLog(log).add("joined")
    assert faults(log) == []
    assert json.loads(lines(log)[LINES])["bytes"] == left


def test_a_kill_between_the_line_and_its_head_is_no_fault(log: Path) -> None:
    content, head = (log / LOG).read_bytes(), (log / HEAD).read_bytes()
    AuditLog(log).add("joined")
    (log / HEAD).write_bytes(head)
    assert faults(log) == []
    AuditLog(log).add("left")
    assert faults(log) == []
    assert (log / LOG).read_bytes().startswith(content)


def test_the_end_of_a_whole_line_is_not_taken_away(log: Path) -> None:
    (log / LOG).write_bytes((log / LOG).read_bytes()[:-1])
    AuditLog(log).add("joined")
    assert (len(lines(log)), faults(log)) == (LINES + 1, [])


def test_the_logs_of_a_federation_hold_and_tell_what_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    AuditLog(tmp_path / "north-node").add("joined", federation="clinic", node="north")
    start(made, progress=False)
    at_node, at_home = verify(tmp_path / "north-node"), verify(made.path)
    assert (at_node.faults, at_home.faults) == ([], [])
    left = {each["digest"]: each for each in at_node.records if each["event"] == "left"}
    arrived = [each for each in at_home.records if each["event"] == "arrived" and each["node"] == "north"]
    assert len(left) >= 5  # the first reply, three rounds, and the end
    assert set(left) == {each["digest"] for each in arrived}  # both logs are of the same bytes
    assert {each["request"] for each in left.values()} <= {
        each["digest"] for each in at_home.records if each["event"] == "sent"
    }
    assert compare(at_node, at_home) == [f"{len(left)} messages of north are in both logs."]
    one = next(each for each in at_node.records if each["event"] == "left")
    short = replace(at_node, records=[each for each in at_node.records if each is not one])
    assert "arrived and never left" in compare(short, at_home)[1]
    with pytest.raises(DataError, match=r"not a node.s log"):
        compare(at_home, at_node)
    trained = [part for each in left.values() for part in each["parts"] if part["kind"] == "train"]
    assert [part["round"] for part in trained] == [1, 2, 3]
    assert all(part["tensors"]["update"][0] == "float32" and part["numbers"]["samples"] == 45 for part in trained)
    assert [each["event"] for each in at_home.records if each["event"] in ("made", "training over")] == [
        "made",
        "training over",
    ]
    total = sum(each["bytes"] for each in left.values())
    assert f"with {total:,} bytes left in all" in "\n".join(describe(tmp_path / "north-node", at_node))


def test_a_node_says_at_its_start_that_its_log_was_changed(log: Path) -> None:
    said: list[str] = []
    report_faults(log, said.append)
    assert said == []
    put(log, [*lines(log)[:2], *lines(log)[3:]])
    report_faults(log, said.append)
    assert "line 3 was removed" in said[0]


def test_on_a_full_disk_nothing_leaves_and_the_organiser_learns_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, transport = make_clinic(tmp_path, monkeypatch)
    member = transport.known["north"].member  # type: ignore[attr-defined]

    def full(*given: object, **kept: object) -> None:
        raise RunError("Could not write audit.jsonl: No space left on device; free some space.")

    monkeypatch.setattr(member.audit, "add", full)
    with pytest.raises(RunError, match="No space left"):
        transport.known["north"].handle(hello())
    member.log_error("it could not write a file")  # said all the same


def hello() -> bytes:
    return NodeRequest("run1", Message(HELLO, 0), {HELLO: [0]}).to_bytes()


def test_the_command_says_what_left_and_ends_with_an_error_where_the_chain_is_broken(log: Path) -> None:
    done = CliRunner().invoke(app, ["federation", "audit", str(log)])
    assert done.exit_code == 0, done.output
    assert done.output.count(" left: run a1, round ") == LINES
    assert f"The chain of {LINES} lines is intact. Its head: {Head(LINES, verify(log).head.hash)}" in done.output
    content = (log / LOG).read_bytes()
    (log / LOG).write_bytes(content.replace(b'"round":3', b'"round":4'))
    done = CliRunner().invoke(app, ["federation", "audit", str(log)])
    assert isinstance(done.exception, DataError)
    assert "line 4 was changed" in str(done.exception)
    with pytest.raises(DataError, match="give the folder of a federation"):
        verify(log / "nowhere")
