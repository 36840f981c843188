"""The ledger: an append-only, hash-chained list of records in which any change is detectable.

Each line is the canonical JSON of a record that contains the hash of the previous one. `ledger.head` has the
index and hash of the last record, so that a missing end is detected too. A line is on disk before `append`
returns.

The chain proves that nothing was changed *after* its head was published: anybody who can write the run
directory can forge a new chain. Publish the head with the result (`verify --head`) to close that gap.
"""

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from agent2rl.core.audit_records import Audit
from agent2rl.core.errors import UserError
from agent2rl.core.events import TimelineEvent
from agent2rl.core.records import LedgerEntry, Record
from agent2rl.core.reproduction import Reproduction
from agent2rl.record.files import (
    canonical_json,
    cut_torn_line,
    open_regular_file,
    read_regular_file,
    require_no_link,
    sha256_text,
    write_atomically,
)
from agent2rl.record.paths import RunPaths

logger = logging.getLogger(__name__)

START = "0" * 64
LONGEST_LINE = 64 << 20
"""A longer line was not written by a harness."""


class LedgerHead(Record):
    index: int
    hash: str


@dataclass(frozen=True)
class LedgerReading:
    """The entries of a ledger up to the first fault, and the fault, if there is one."""

    entries: tuple[LedgerEntry, ...]
    fault: str | None
    torn: bool
    """Whether the last line is incomplete because of a crash during a write."""


class Ledger:
    """Appends to a ledger file. Safe to share between threads, not between processes."""

    def __init__(self, path: Path, head: Path) -> None:
        reading = read_ledger(path, head)
        if reading.fault or reading.torn:
            raise ValueError(f"cannot append to a ledger that does not hold: {reading.fault or 'torn'}")
        self._head = head
        self._index = len(reading.entries)
        self._last = reading.entries[-1].hash if reading.entries else START
        self._lock = threading.Lock()
        self._file = path.open("ab", buffering=0)

    @property
    def last(self) -> str:
        return self._last

    @property
    def is_empty(self) -> bool:
        return self._index == 0

    def append(self, kind: str, data: dict[str, JsonValue]) -> LedgerEntry:
        with self._lock:
            body = {
                "index": self._index,
                "time": time.time(),
                "kind": kind,
                "data": data,
                "previous": self._last,
            }
            entry = LedgerEntry.model_validate({**body, "hash": sha256_text(canonical_json(body))})
            self._write_entry(entry)
            self._index += 1
            self._last = entry.hash
            logger.debug("%s record %d: %s%s", self._head.stem, entry.index, kind, _name_subject(data))
            return entry

    def _write_entry(self, entry: LedgerEntry) -> None:
        """Write line and head, or neither: on a full disk only a part may fit."""
        line = (canonical_json(entry.model_dump()) + "\n").encode()
        head = LedgerHead(index=entry.index, hash=entry.hash).model_dump_json()
        before = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # The line comes first. A head that lags is repaired; a head without its line would be a
            # fault.
            os.fsync(self._file.fileno())
            write_atomically(self._head, head)
        except OSError:
            # If the head is in place, only making it durable failed, and the record stays.
            if not (self._head.exists() and self._head.read_text(encoding="utf-8") == head):
                self._file.truncate(before)
                raise

    def close(self) -> None:
        self._file.close()


def _name_subject(data: Mapping[str, JsonValue]) -> str:
    """Return what a record is about, for the log: a submission, a split, a file or nothing."""
    submission = data.get("submission")
    number = submission.get("id") if isinstance(submission, dict) else submission
    parts = [
        f"submission {number}" if number is not None else "",
        *(str(data.get(key) or "") for key in ("split", "file")),
    ]
    return ", ".join(["", *filter(None, parts)])


def read_ledger(path: Path, head: Path) -> LedgerReading:
    """Read a ledger and report the first break of the chain."""
    entries: list[LedgerEntry] = []
    torn = False
    try:
        for line in _read_lines(path):
            if torn := not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                break
            entry, fault = _check_entry(line[:-1], len(entries), entries[-1].hash if entries else START)
            if entry is None:
                return LedgerReading(tuple(entries), fault, torn=False)
            entries.append(entry)
    except OSError as error:
        return LedgerReading((), f"the ledger cannot be read: {error.strerror}", torn=False)
    return LedgerReading(tuple(entries), _check_head(entries, head), torn)


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines one by one, so that the first fault ends the reading of a huge file."""
    with suppress(FileNotFoundError), open_regular_file(path) as file:
        while line := file.readline(LONGEST_LINE):
            yield line


def make_timeline_event(entry: LedgerEntry) -> TimelineEvent:
    """Return the timeline event of a ledger record."""
    return TimelineEvent(time=entry.time, kind=entry.kind, data=entry.data)


def repair_ledger(path: Path, head: Path) -> tuple[LedgerReading, tuple[str, ...]]:
    """Repair what a crash causes: an incomplete line, an outdated head. Return what was done.

    Any other damage is a fault and is left as it is.
    """
    reading = read_ledger(path, head)
    if reading.fault:
        return reading, ()
    done: tuple[str, ...] = (
        ("a ledger line that was cut off is gone",) if reading.torn and cut_torn_line(path) else ()
    )
    if reading.entries:
        last = reading.entries[-1]
        noted = LedgerHead(index=last.index, hash=last.hash).model_dump_json()
        if not head.exists() or head.read_text(encoding="utf-8") != noted:
            write_atomically(head, noted)
            done += ("ledger.head, which lagged behind, was written",)
    return replace(reading, torn=False), done


def _check_entry(line: bytes, index: int, previous: str) -> tuple[LedgerEntry | None, str]:
    where = f"ledger record {index}"
    try:
        entry = LedgerEntry.model_validate(json.loads(line))
        written = canonical_json(entry.model_dump()).encode()  # refuses infinity, which 1E999 is
    except (ValueError, RecursionError, ValidationError):
        return None, f"{where} cannot be read"
    body = entry.model_dump(exclude={"hash"})
    if written != line:
        return None, f"{where} is not in canonical form"
    if entry.index != index:
        return None, f"{where} says it is record {entry.index}: records were dropped, repeated or moved"
    if entry.previous != previous:
        return None, f"{where} does not follow the one before"
    if sha256_text(canonical_json(body)) != entry.hash:
        return None, f"{where} was changed: its hash does not fit"
    return entry, ""


def _check_head(entries: list[LedgerEntry], head: Path) -> str | None:
    """Check the head. It may lag by one record, if a crash came between the two writes."""
    if not head.exists():
        return None if len(entries) <= 1 else "ledger.head is missing"
    try:
        noted = LedgerHead.model_validate_json(read_regular_file(head))
    except (ValidationError, OSError):
        return "ledger.head cannot be read"
    if noted.index < 0:
        return f"ledger.head names record {noted.index}"
    if noted.index >= len(entries):
        return f"the ledger ends at record {len(entries) - 1}, but record {noted.index} was written"
    if entries[noted.index].hash != noted.hash:
        return f"ledger.head does not fit record {noted.index}"
    if noted.index < len(entries) - 2:
        return f"ledger.head stops at record {noted.index} of {len(entries) - 1}"
    return None


# What is found out about a run after it was closed: a chain of its own beside the ledger.
#
# A closed ledger never changes, so that a head that was published with the result stays valid.
# `additions.jsonl` has the same form as the ledger. Its first record names the last hash of the run's ledger,
# so it cannot be moved to another run, and each later record covers all before it.


AdditionKind = Literal["opened", "reproduction", "audit"]


@dataclass(frozen=True)
class AdditionsReading:
    """The records up to the first fault, and the fault, if there is one."""

    entries: tuple[LedgerEntry, ...] = ()
    fault: str | None = None
    torn: bool = False
    """Whether the last line is incomplete, as after a crash."""

    @property
    def head(self) -> str:
        return self.entries[-1].hash if self.entries else ""

    def list_reproductions(self) -> tuple[Reproduction, ...]:
        """Return the reproductions, oldest first. Call this only if there is no fault."""
        kind: AdditionKind = "reproduction"
        return tuple(Reproduction.model_validate(each.data) for each in self.entries if each.kind == kind)

    def list_audits(self) -> tuple[Audit, ...]:
        """Return the audits, oldest first. Call this only if there is no fault."""
        kind: AdditionKind = "audit"
        return tuple(Audit.model_validate(each.data) for each in self.entries if each.kind == kind)


def read_additions(paths: RunPaths, run_head: str) -> AdditionsReading:
    """Read what was added to a run whose ledger ends with this hash."""
    if not paths.additions.exists() and not paths.additions_head.exists():
        return AdditionsReading()
    chain = read_ledger(paths.additions, paths.additions_head)
    reading = AdditionsReading(chain.entries, chain.fault, chain.torn)
    fault = chain.fault or _find_fault(reading, run_head)
    return AdditionsReading(chain.entries, f"{paths.additions.name}: {fault}" if fault else None, chain.torn)


def _find_fault(reading: AdditionsReading, run_head: str) -> str | None:
    if not reading.entries:  # a crash may have come before the first record was whole
        return None
    first = reading.entries[0]
    if first.kind != "opened" or first.data.get("ledger_head") != run_head:
        return "it belongs to another record than this ledger"
    try:
        reading.list_reproductions()
        reading.list_audits()
    except ValidationError:
        return "a reproduction or an audit is not a valid record of its kind"
    return None


def require_additions_intact(paths: RunPaths) -> str:
    """Return the last hash of the run's ledger; raise UserError if nothing can be added to the run."""
    entries = read_ledger(paths.ledger, paths.ledger_head).entries
    fault = read_additions(paths, entries[-1].hash).fault if entries else "its ledger cannot be read"
    if fault:
        raise UserError(f"Nothing can be added to {paths.run_id}: {fault}.", "Restore it from a copy.")
    return entries[-1].hash


def append_addition(paths: RunPaths, kind: AdditionKind, data: dict[str, JsonValue]) -> str:
    """Add a record to a closed run and return its hash. The caller holds the run's lock."""
    require_no_link(paths.additions, paths.additions_head)
    repair_ledger(paths.additions, paths.additions_head)
    run_head = require_additions_intact(paths)
    chain = Ledger(paths.additions, paths.additions_head)
    try:
        if chain.is_empty:
            opening: AdditionKind = "opened"
            chain.append(opening, {"run_id": paths.run_id, "ledger_head": run_head})
        chain.append(kind, data)
        return chain.last
    finally:
        chain.close()
