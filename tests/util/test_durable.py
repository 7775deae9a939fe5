"""Records that must not be lost: whatever a disk does to them is found, and a power cut is not taken for damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedframe.errors import DataError
from fedframe.util.durable import append_record, read_records

RECORDS: list[dict[str, Any]] = [{"key": "ab run1 0 1", "noise": 1.0}, {"key": "ab run1 0 2", "noise": 0.5}]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    for record in RECORDS:
        append_record(tmp_path / "ledger.jsonl", record)
    return tmp_path / "ledger.jsonl"


def test_every_flipped_bit_is_found_or_changes_nothing(ledger: Path) -> None:
    """A ledger whose noise of 1.0 became 5.0 would let a node answer more often than its people want."""
    content, found = ledger.read_bytes(), 0
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << (bit % 8)
        ledger.write_bytes(changed)
        try:
            read = read_records(ledger)
        except DataError:
            found += 1
            continue
        assert [{name: record[name] for name in ("key", "noise")} for record in read] == RECORDS
    assert found > 0.8 * 8 * len(content)


def test_a_line_that_was_cut_off_anywhere_is_left_out(ledger: Path) -> None:
    content = ledger.read_bytes()
    for end in range(content.index(b"\n") + 1, len(content) - 1):
        ledger.write_bytes(content[:end])
        assert read_records(ledger) == RECORDS[:1]
        append_record(ledger, RECORDS[1])
        assert read_records(ledger) == RECORDS


def test_lines_of_earlier_versions_are_read(ledger: Path) -> None:
    ledger.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    append_record(ledger, RECORDS[0])
    assert read_records(ledger) == [*RECORDS, RECORDS[0]]
