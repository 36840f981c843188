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
from agent2rl.environments.search.backend import Backend, NotRecorded, QueryRefused, SearchResult

Kind = Literal["search", "open"]


class RecordedAnswer(Record):
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

    def require_answer(self) -> "RecordedAnswer":
        if self.error:
            raise (QueryRefused if self.refused else WorldError)(self.error)
        return self


class RecordingBackend:
    """Answers as another backend does, and writes down each answer as it comes, until it is closed."""

    def __init__(
        self, backend: Backend, name: str, path: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self._backend, self._name, self._path, self._clock = backend, name, path, clock
        self._lock = threading.Lock()
        self._held = _lock_record(path)
        try:
            self._entries = _resume_record(path)
            if others := {entry.backend for entry in self._entries.values()} - {name}:
                raise UserError(f"{path} was recorded from {min(others)}, not {name}.", "Name another file.")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._held.close()

    def search(self, query: str) -> tuple[SearchResult, ...]:
        return tuple(
            SearchResult(*found) for found in self._get_entry("search", query).require_answer().results
        )

    def open(self, id: str) -> str:  # noqa: A002
        return self._get_entry("open", id).require_answer().page

    def _get_entry(self, kind: Kind, text: str) -> RecordedAnswer:
        with self._lock:
            if (known := self._entries.get((kind, text))) and not known.error:
                return known
        asked = self._ask_backend(kind, text)  # others need not wait for it
        with self._lock:
            if (known := self._entries.get((kind, text))) and not known.error:
                return known
            self._entries[kind, text] = asked
            with self._path.open("a", encoding="utf-8") as record:
                record.write(asked.model_dump_json() + "\n")
        return asked

    def _ask_backend(self, kind: Kind, text: str) -> RecordedAnswer:
        entry = RecordedAnswer(kind=kind, text=text, backend=self._name, time=self._clock())
        try:
            if kind == "open":
                return entry.model_copy(update={"page": self._backend.open(text)})
            found = self._backend.search(text)
        except WorldError as error:
            why = {"error": str(error) or type(error).__name__, "refused": isinstance(error, QueryRefused)}
            return entry.model_copy(update=why)
        return entry.model_copy(update={"results": tuple((one.id, one.title, one.snippet) for one in found)})


class ReplayBackend:
    """Answers from a record alone."""

    def __init__(self, path: Path) -> None:
        self._entries = read_search_record(path)
        self._lock = threading.Lock()
        self.missing = 0
        """How often it was asked for what it does not hold."""

    def search(self, query: str) -> tuple[SearchResult, ...]:
        return tuple(
            SearchResult(*found) for found in self._get_entry("search", query).require_answer().results
        )

    def open(self, id: str) -> str:  # noqa: A002
        return self._get_entry("open", id).require_answer().page

    def _get_entry(self, kind: Kind, text: str) -> RecordedAnswer:
        entry = self._entries.get((kind, text))
        if entry is None:
            with self._lock:
                self.missing += 1
            raise NotRecorded(f"The record has no answer to {kind}[{text[:100]}].")
        return entry


def read_search_record(path: Path) -> dict[tuple[Kind, str], RecordedAnswer]:
    """The answers of a record: the last to each question holds. A last line that was cut off is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
        entries = [RecordedAnswer.model_validate_json(line) for line in lines[:-1] if line]
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is no record of searches: {error}") from error
    return {(entry.kind, entry.text): entry for entry in entries}


def _lock_record(path: Path) -> BinaryIO:
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


def _resume_record(path: Path) -> dict[tuple[Kind, str], RecordedAnswer]:
    """The answers of a record that is to grow, without a last line that was cut off."""
    found = read_search_record(path)
    with path.open("r+b") as record:
        record.truncate(record.read().rfind(b"\n") + 1)
    return found
