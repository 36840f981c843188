"""The search `Backend` protocol, and the backends without a network: corpus, grading proxy, replay.

A backend that cannot answer raises `WorldError`, whose message the model sees. Results that name the
benchmark itself are withheld. A recording is JSON lines of one backend, with one writer at a time:

    {"kind": "search", "text": <query>, "backend": …, "time": …, "results": [[id, title, snippet], …]}
    {"kind": "open", "text": <id>, …, "page": …}          or "error": … if the backend failed

A repeated query is answered from the recording, a failed one is asked again. Not covered: phrases,
misspellings, fields.
"""

import fcntl
import hashlib
import json
import re
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal, Protocol
from urllib.parse import unquote

from pydantic import ValidationError

from agent2rl.core.errors import UserError, WorldError
from agent2rl.core.records import Record
from agent2rl.environments.retrieval import Bm25Index
from agent2rl.net.grading_proxy_client import GradingProxyClient, ProxyError

# What a search stands on: something that finds documents for a query and opens one of them.

PAGE_CHARACTERS = 20_000
"""As much of a page as anybody is given."""
NOT_RECORDED = "not recorded"
"""How the desk calls what `NotRecorded` is here."""
REFUSED = "refused"
"""And what `QueryRefused` is."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A document as a search shows it."""

    id: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class SearchDocument:
    id: str
    title: str
    text: str


class NotRecorded(WorldError):
    """A replay was asked for what it does not hold."""


class QueryRefused(WorldError):
    """A backend does not take this query: that is the query's fault, and no failure of the backend."""


class Backend(Protocol):
    """May be asked by several threads at once."""

    def search(self, query: str) -> tuple[SearchResult, ...]:
        """The best documents first."""
        ...

    def open(self, id: str) -> str:  # noqa: A002
        """The text of a document that a search has found."""
        ...


@dataclass(frozen=True)
class DeskBackend:
    """A backend of the harness, asked over its desk."""

    desk: GradingProxyClient

    def search(self, query: str) -> tuple[SearchResult, ...]:
        try:
            return tuple(SearchResult(*found) for found in self.desk.search(query).results)
        except ProxyError as error:
            raise _to_world_error(error) from error

    def open(self, id: str) -> str:  # noqa: A002
        try:
            return self.desk.open(id).page
        except ProxyError as error:
            raise _to_world_error(error) from error


def _to_world_error(error: ProxyError) -> WorldError:
    kinds: dict[str, type[WorldError]] = {NOT_RECORDED: NotRecorded, REFUSED: QueryRefused}
    return kinds.get(error.kind, WorldError)(error.message)


# Keeps the benchmark's own pages out of what a search shows: they have the questions with their answers.

_NAME = re.compile(r"deep[\s_.+-]{0,3}search[\s_.+-]{0,3}qa|dsqa[\s_.+-]{0,3}full", re.IGNORECASE)


def names_the_benchmark(text: str) -> bool:
    """Whether a text or an address does, however that is written."""
    return bool(_NAME.search(unquote(text)))


def is_withheld(result: SearchResult) -> bool:
    return any(map(names_the_benchmark, (result.id, result.title, result.snippet)))


# Searches documents that fit into memory, ranked as Lucene ranks them; the beginning of one is its
# snippet.

SHOWN = 5
"""Results of a search."""
SNIPPET_WORDS = 24
CORPUS = "documents.jsonl"
SHAPE = "search.json"
"""{"shown": …, "snippet_words": …}, where they are not the usual ones."""
TEXT_SUFFIXES = (".txt", ".md")


class LocalCorpus:
    """Of documents that are equally good, the first by its id comes first."""

    def __init__(
        self, documents: Sequence[SearchDocument], shown: int = SHOWN, snippet_words: int = SNIPPET_WORDS
    ) -> None:
        self.documents = tuple(documents)
        self.shown, self.snippet_words = shown, snippet_words
        self._found = {document.id: document for document in self.documents}
        # A page on something has its name as the title, and may not repeat it: the title counts twice.
        texts = ((one.id, _strip_accents(f"{one.title} {one.title} {one.text}")) for one in self.documents)
        self._index = Bm25Index.from_texts(texts)

    @property
    def sha256(self) -> str:
        """Of all that its answers depend on."""
        rows = [(one.id, one.title, one.text) for one in self.documents]
        return hashlib.sha256(json.dumps([self.shown, self.snippet_words, rows]).encode()).hexdigest()

    def search(self, query: str) -> tuple[SearchResult, ...]:
        hits = self._index.search(_strip_accents(query), self.shown)
        return tuple(self._make_result(self._found[hit.id]) for hit in hits)

    def open(self, id: str) -> str:  # noqa: A002
        if id not in self._found:
            raise WorldError(f"There is no document {id!r}.")
        return self._found[id].text

    def _make_result(self, document: SearchDocument) -> SearchResult:
        told = document.text.split(maxsplit=self.snippet_words)
        more = " …" if len(told) > self.snippet_words else ""
        return SearchResult(document.id, document.title, " ".join(told[: self.snippet_words]) + more)


def _strip_accents(text: str) -> str:
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in apart if not unicodedata.combining(letter))


def write_corpus(folder: Path, corpus: LocalCorpus) -> None:
    rows = ({"id": one.id, "title": one.title, "text": one.text} for one in corpus.documents)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / CORPUS).write_text(text, encoding="utf-8")
    shape = {"shown": corpus.shown, "snippet_words": corpus.snippet_words}
    (folder / SHAPE).write_text(json.dumps(shape) + "\n", encoding="utf-8")


@lru_cache(maxsize=8)
def read_corpus(folder: Path) -> LocalCorpus:
    """The documents of a folder, read once: `documents.jsonl`, or else every .txt and .md file below it."""
    try:
        found = list(_read_rows(folder / CORPUS) if (folder / CORPUS).exists() else _read_files(folder))
        shape = json.loads((folder / SHAPE).read_bytes()) if (folder / SHAPE).exists() else {}
        corpus = LocalCorpus(found, **shape)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder} cannot be read: {type(error).__name__}: {error}.") from error
    if not found:
        raise UserError(
            f"There is nothing to search in {folder}.",
            f"It wants {CORPUS}, or files *{', *'.join(TEXT_SUFFIXES)}.",
        )
    if len({document.id for document in found}) < len(found):
        raise UserError(f"{folder} has two documents with one id.")
    return corpus


def _read_rows(path: Path) -> Iterator[SearchDocument]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line:
            found = SearchDocument(**json.loads(line))
            if not all(isinstance(part, str) for part in (found.id, found.title, found.text)):
                raise ValueError(f"line {number} has something other than text")
            yield found


def _read_files(folder: Path) -> Iterator[SearchDocument]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in TEXT_SUFFIXES and path.is_file():
            name = path.relative_to(folder)
            yield SearchDocument(str(name), str(name.with_suffix("")), path.read_text("utf-8", "replace"))


# Records what a backend answers, and answers from the record: what is played again is the same to the
# byte.

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
