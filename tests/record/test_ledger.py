"""The ledger shows any single edited, dropped, repeated or reordered record."""

import json
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent2rl.record.files import canonical_json, sha256_text
from agent2rl.record.ledger import Ledger, read_ledger

RECORDS = 6


def write(directory: Path, records: int = RECORDS) -> tuple[Path, Path]:
    path, head = directory / "ledger.jsonl", directory / "ledger.head"
    ledger = Ledger(path, head)
    for number in range(records):
        ledger.append("note", {"number": number, "text": f"näher {number}"})
    ledger.close()
    return path, head


@cache
def written() -> tuple[bytes, bytes]:
    """A ledger and its head, written once for the tests that change copies of them."""
    with TemporaryDirectory() as directory:
        path, head = write(Path(directory))
        return path.read_bytes(), head.read_bytes()


@contextmanager
def copies(raw: bytes) -> Iterator[tuple[Path, Path]]:
    with TemporaryDirectory() as directory:
        path, head = Path(directory) / "ledger.jsonl", Path(directory) / "ledger.head"
        path.write_bytes(raw)
        head.write_bytes(written()[1])
        yield path, head


def faulty(path: Path, head: Path) -> bool:
    reading = read_ledger(path, head)
    return reading.fault is not None or reading.torn


def test_an_untouched_ledger_holds(tmp_path: Path) -> None:
    path, head = write(tmp_path)
    reading = read_ledger(path, head)
    assert reading.fault is None
    assert [entry.data["number"] for entry in reading.entries] == list(range(RECORDS))


def test_a_reopened_ledger_goes_on_with_the_chain(tmp_path: Path) -> None:
    path, head = write(tmp_path, 2)
    ledger = Ledger(path, head)
    ledger.append("more", {})
    ledger.close()
    assert read_ledger(path, head).fault is None
    assert len(read_ledger(path, head).entries) == 3


@settings(max_examples=300, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_any_changed_byte_shows(position: float, byte: int) -> None:
    raw = bytearray(written()[0])
    index = int(position * len(raw))
    assume(raw[index] != byte)
    raw[index] = byte
    with copies(bytes(raw)) as (path, head):
        assert faulty(path, head)


def test_a_number_that_became_infinite_shows() -> None:
    raw = re.sub(rb'"time":[0-9.]+', b'"time":1E999', written()[0], count=1)
    with copies(raw) as (path, head):
        assert faulty(path, head)


@pytest.mark.parametrize("record", range(RECORDS))
def test_a_dropped_record_shows_even_the_last(tmp_path: Path, record: int) -> None:
    path, head = write(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:record] + lines[record + 1 :]))
    assert faulty(path, head)


@settings(max_examples=100, deadline=None)
@given(record=st.integers(0, RECORDS - 1), place=st.integers(0, RECORDS))
def test_a_repeated_record_shows_wherever_it_is_put(record: int, place: int) -> None:
    lines = written()[0].splitlines(keepends=True)
    with copies(b"".join([*lines[:place], lines[record], *lines[place:]])) as (path, head):
        assert faulty(path, head)


@settings(max_examples=100, deadline=None)
@given(order=st.permutations(range(RECORDS)))
def test_any_other_order_shows(order: list[int]) -> None:
    lines = written()[0].splitlines(keepends=True)
    with copies(b"".join(lines[index] for index in order)) as (path, head):
        assert faulty(path, head) == (order != list(range(RECORDS)))


def test_a_record_rewritten_with_a_fitting_hash_breaks_the_next_link(tmp_path: Path) -> None:
    path, head = write(tmp_path)
    lines = path.read_text().splitlines()
    record = json.loads(lines[2])
    record["data"]["number"] = 99
    del record["hash"]
    record["hash"] = sha256_text(canonical_json(record))
    path.write_text("\n".join([*lines[:2], canonical_json(record), *lines[3:]]) + "\n")
    assert read_ledger(path, head).fault == "ledger record 3 does not follow the one before"


def test_a_line_cut_off_by_a_crash_is_told_from_a_change(tmp_path: Path) -> None:
    path, head = write(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"index": 6, "ti')
    reading = read_ledger(path, head)
    assert reading.torn
    assert reading.fault is None
    assert len(reading.entries) == RECORDS


def test_a_crash_between_record_and_head_is_no_fault(tmp_path: Path) -> None:
    path, head = write(tmp_path, RECORDS - 1)
    before = head.read_bytes()
    ledger = Ledger(path, head)
    ledger.append("note", {})
    ledger.close()
    head.write_bytes(before)
    assert read_ledger(path, head).fault is None


def test_a_full_disk_leaves_no_half_of_a_record_and_the_chain_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    """A file that may not grow further is the one full disk that needs no disk: half of the line fits."""
    path, head = tmp_path / "ledger.jsonl", tmp_path / "ledger.head"
    ledger = Ledger(path, head)
    ledger.append("first", {"text": "x" * 1000})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"No space left|File too large"):
            ledger.append("second", {"text": "y" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    in_the_way = tmp_path / f".ledger.head.{os.getpid()}.new"
    in_the_way.mkdir()
    for _ in range(3):
        with pytest.raises(IsADirectoryError):
            ledger.append("third", {})
    in_the_way.rmdir()
    ledger.append("fourth", {})
    ledger.close()
    reading = read_ledger(path, head)
    assert (reading.fault, reading.torn) == (None, False)
    assert [entry.kind for entry in reading.entries] == ["first", "fourth"]
