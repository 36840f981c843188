"""Records what a backend answers, and answers from the record: what is played again is the same to the byte.

    {"kind": "search", "text": <query>, "backend": …, "time": …, "results": [[id, title, snippet], …]}
    {"kind": "open", "text": <id>, …, "page": …}          or "error": … where the backend failed

What is asked twice is answered from the record; what failed is asked anew, and the last answer holds: to keep
a failure makes a minute's outage one of the whole run. Asked for what it does not hold, a replay fails as
a backend does, and counts it. A record is of one backend, and one at a time writes it.
"""

import fcntl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import ValidationError

from agent2rl.core.errors import UserError, WorldError
from agent2rl.core.records import Record
from agent2rl.environments.search.backend import Backend, NotRecorded, Refused, Result

Kind = Literal["search", "open"]


class Entry(Record):
    """One answer of a backend."""

    kind: Kind
    text: str
    """The query, or the id of the document."""
    backend: str
    time: float
    """Seconds since the epoch."""
    results: tuple[tuple[str, str, str], ...] = ()
    page: str = ""
    error: str = ""
    """Why there is no answer."""
    refused: bool = False
    """Whether the query is at fault."""

    def answer(self) -> "Entry":
        if self.error:
            raise (Refused if self.refused else WorldError)(self.error)
        return self


class Recording:
    """Answers as another backend does, and writes down each answer as it comes, until it is closed."""

    def __init__(
        self, backend: Backend, name: str, path: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self._backend, self._name, self._path, self._clock = backend, name, path, clock
        self._lock = threading.Lock()
        self._held = _held(path)
        try:
            self._entries = _continued(path)
            if others := {entry.backend for entry in self._entries.values()} - {name}:
                raise UserError(f"{path} was recorded from {min(others)}, not {name}.", "Name another file.")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._held.close()

    def search(self, query: str) -> tuple[Result, ...]:
        return tuple(Result(*found) for found in self._entry("search", query).answer().results)

    def open(self, id: str) -> str:  # noqa: A002
        return self._entry("open", id).answer().page

    def _entry(self, kind: Kind, text: str) -> Entry:
        with self._lock:
            if (known := self._entries.get((kind, text))) and not known.error:
                return known
        asked = self._ask(kind, text)  # others need not wait for it
        with self._lock:
            if (known := self._entries.get((kind, text))) and not known.error:
                return known
            self._entries[kind, text] = asked
            with self._path.open("a", encoding="utf-8") as record:
                record.write(asked.model_dump_json() + "\n")
        return asked

    def _ask(self, kind: Kind, text: str) -> Entry:
        entry = Entry(kind=kind, text=text, backend=self._name, time=self._clock())
        try:
            if kind == "open":
                return entry.model_copy(update={"page": self._backend.open(text)})
            found = self._backend.search(text)
        except WorldError as error:
            why = {"error": str(error) or type(error).__name__, "refused": isinstance(error, Refused)}
            return entry.model_copy(update=why)
        return entry.model_copy(update={"results": tuple((one.id, one.title, one.snippet) for one in found)})


class Replay:
    """Answers from a record alone."""

    def __init__(self, path: Path) -> None:
        self._entries = read_record(path)
        self._lock = threading.Lock()
        self.missing = 0
        """How often it was asked for what it does not hold."""

    def search(self, query: str) -> tuple[Result, ...]:
        return tuple(Result(*found) for found in self._entry("search", query).answer().results)

    def open(self, id: str) -> str:  # noqa: A002
        return self._entry("open", id).answer().page

    def _entry(self, kind: Kind, text: str) -> Entry:
        entry = self._entries.get((kind, text))
        if entry is None:
            with self._lock:
                self.missing += 1
            raise NotRecorded(f"The record has no answer to {kind}[{text[:100]}].")
        return entry


def read_record(path: Path) -> dict[tuple[Kind, str], Entry]:
    """The answers of a record: the last to each question holds. A last line that was cut off is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
        entries = [Entry.model_validate_json(line) for line in lines[:-1] if line]
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is no record of searches: {error}") from error
    return {(entry.kind, entry.text): entry for entry in entries}


def _held(path: Path) -> BinaryIO:
    """The record, which is nobody else's to write until this is closed."""
    try:
        file = path.open("ab")
    except OSError as error:
        raise UserError(f"Searches cannot be recorded in {path}: {error.strerror}.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UserError(f"Another run records its searches in {path}.", "Name another file.") from error
    return file


def _continued(path: Path) -> dict[tuple[Kind, str], Entry]:
    """The answers of a record that is to grow, without a last line that was cut off."""
    found = read_record(path)
    with path.open("r+b") as record:
        record.truncate(record.read().rfind(b"\n") + 1)
    return found
