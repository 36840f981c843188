"""The search `Backend` protocol, and the backends without a network: corpus, grading proxy, replay.

A backend that cannot answer raises `ExternalServiceError`. The model reads its message, so the texts of these
errors are part of the measurement. Results that name the benchmark itself are withheld. A recording is JSON
lines of one backend, with one writer at a time:

    {"kind": "search", "text": <query>, "backend": …, "time": …, "results": [[id, title, snippet], …]}
    {"kind": "open", "text": <id>, …, "page": …}          or "error": … if the backend failed

A repeated query is answered from the recording, a failed one is asked again. Not covered: phrases,
misspellings, fields.
"""

import hashlib
import json
import logging
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

from agent2rl.core.errors import ExternalServiceError, UserError
from agent2rl.core.records import Record
from agent2rl.environments.retrieval import Bm25Index
from agent2rl.net.grading_proxy_client import GradingProxyClient, ProxyError
from agent2rl.system.unix import fcntl

# The backend protocol, and the backend that searches through the grading proxy

logger = logging.getLogger(__name__)

PAGE_CHARACTERS = 20_000
"""A page is cut to this length."""
NOT_RECORDED = "not recorded"
"""The grading proxy's error kind for `NotRecorded`."""
REFUSED = "refused"
"""The grading proxy's error kind for `QueryRefused`."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One entry in the results of a search."""

    id: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class SearchDocument:
    id: str
    title: str
    text: str


class NotRecorded(ExternalServiceError):
    """A replay has no answer to this query."""


class QueryRefused(ExternalServiceError):
    """A backend rejects this query: the query is at fault, the backend works."""


class Backend(Protocol):
    """Find documents for a query, and open one of them. Must be thread-safe."""

    def search(self, query: str) -> tuple[SearchResult, ...]:
        """Return matching documents, best first."""
        ...

    def open(self, id: str) -> str:  # noqa: A002
        """Return the text of a document that a search has found."""
        ...


@dataclass(frozen=True)
class ProxyBackend:
    """Search with the harness's backend, through the grading proxy."""

    proxy: GradingProxyClient

    def search(self, query: str) -> tuple[SearchResult, ...]:
        try:
            return tuple(SearchResult(*row) for row in self.proxy.search(query).results)
        except ProxyError as error:
            raise _to_service_error(error) from error

    def open(self, id: str) -> str:  # noqa: A002
        try:
            return self.proxy.open(id).page
        except ProxyError as error:
            raise _to_service_error(error) from error


def _to_service_error(error: ProxyError) -> ExternalServiceError:
    kinds: dict[str, type[ExternalServiceError]] = {NOT_RECORDED: NotRecorded, REFUSED: QueryRefused}
    return kinds.get(error.kind, ExternalServiceError)(error.message)


# Withholding the benchmark's own pages, which contain the questions with their answers

_NAME = re.compile(r"deep[\s_.+-]{0,3}search[\s_.+-]{0,3}qa|dsqa[\s_.+-]{0,3}full", re.IGNORECASE)


def names_the_benchmark(text: str) -> bool:
    """Return whether a text or URL names the benchmark, in any spelling."""
    return bool(_NAME.search(unquote(text)))


def is_withheld(result: SearchResult) -> bool:
    return any(map(names_the_benchmark, (result.id, result.title, result.snippet)))


# Local corpus: documents in memory, ranked as Lucene does, with the beginning of each as its snippet

SHOWN = 5
"""Default number of results of a search."""
SNIPPET_WORDS = 24
CORPUS = "documents.jsonl"
SHAPE = "search.json"
"""{"shown": …, "snippet_words": …}, if they differ from the defaults."""
TEXT_SUFFIXES = (".txt", ".md")


class LocalCorpus:
    """Search documents in memory. Ties are ordered by document id."""

    def __init__(
        self, documents: Sequence[SearchDocument], shown: int = SHOWN, snippet_words: int = SNIPPET_WORDS
    ) -> None:
        self.documents = tuple(documents)
        self.shown, self.snippet_words = shown, snippet_words
        self._by_id = {document.id: document for document in self.documents}
        # The title counts twice: the text of a page may not repeat the name of its subject.
        texts = (
            (document.id, _strip_accents(f"{document.title} {document.title} {document.text}"))
            for document in self.documents
        )
        self._index = Bm25Index.from_texts(texts)

    @property
    def sha256(self) -> str:
        """Hash of everything that the answers depend on."""
        rows = [(document.id, document.title, document.text) for document in self.documents]
        return hashlib.sha256(json.dumps([self.shown, self.snippet_words, rows]).encode()).hexdigest()

    def search(self, query: str) -> tuple[SearchResult, ...]:
        hits = self._index.search(_strip_accents(query), self.shown)
        return tuple(self._make_result(self._by_id[hit.id]) for hit in hits)

    def open(self, id: str) -> str:  # noqa: A002
        if id not in self._by_id:
            raise ExternalServiceError(f"There is no document {id!r}.")
        return self._by_id[id].text

    def _make_result(self, document: SearchDocument) -> SearchResult:
        words = document.text.split(maxsplit=self.snippet_words)
        ellipsis = " …" if len(words) > self.snippet_words else ""
        return SearchResult(document.id, document.title, " ".join(words[: self.snippet_words]) + ellipsis)


def _strip_accents(text: str) -> str:
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def write_corpus(folder: Path, corpus: LocalCorpus) -> None:
    rows = (
        {"id": document.id, "title": document.title, "text": document.text} for document in corpus.documents
    )
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / CORPUS).write_text(text, encoding="utf-8")
    shape = {"shown": corpus.shown, "snippet_words": corpus.snippet_words}
    (folder / SHAPE).write_text(json.dumps(shape) + "\n", encoding="utf-8")


@lru_cache(maxsize=8)
def read_corpus(folder: Path) -> LocalCorpus:
    """Read the documents of a folder: `documents.jsonl`, or else all .txt and .md files below it. Cached."""
    try:
        documents = list(_read_rows(folder / CORPUS) if (folder / CORPUS).exists() else _read_files(folder))
        shape = json.loads((folder / SHAPE).read_bytes()) if (folder / SHAPE).exists() else {}
        corpus = LocalCorpus(documents, **shape)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"Cannot read {folder}: {type(error).__name__}: {error}.") from error
    if not documents:
        raise UserError(
            f"There is nothing to search in {folder}.",
            f"Add {CORPUS}, or files *{', *'.join(TEXT_SUFFIXES)}.",
        )
    if len({document.id for document in documents}) < len(documents):
        raise UserError(f"{folder} has two documents with the same id.")
    logger.debug("Indexed %d documents of %s", len(documents), folder)
    return corpus


def _read_rows(path: Path) -> Iterator[SearchDocument]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line:
            document = SearchDocument(**json.loads(line))
            if not all(isinstance(part, str) for part in (document.id, document.title, document.text)):
                raise ValueError(f"line {number} has a value that is not text")
            yield document


def _read_files(folder: Path) -> Iterator[SearchDocument]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in TEXT_SUFFIXES and path.is_file():
            name = path.relative_to(folder)
            yield SearchDocument(str(name), str(name.with_suffix("")), path.read_text("utf-8", "replace"))


# Recording and replaying a backend's answers, so that a repeated run is the same to the byte

Kind = Literal["search", "open"]


class RecordedAnswer(Record):
    """One answer of a backend, as a line of the recording."""

    kind: Kind
    text: str
    """The query, or the id of the document."""
    backend: str
    time: float
    """Seconds since the epoch."""
    results: tuple[tuple[str, str, str], ...] = ()
    page: str = ""
    error: str = ""
    """Why the backend failed; else empty."""
    refused: bool = False
    """The backend rejected the query."""

    def require_answer(self) -> "RecordedAnswer":
        if self.error:
            raise (QueryRefused if self.refused else ExternalServiceError)(self.error)
        return self


class RecordingBackend:
    """Pass queries on to another backend, and record each answer as it comes, until closed."""

    def __init__(
        self, backend: Backend, name: str, path: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self._backend, self._name, self._path, self._clock = backend, name, path, clock
        self._lock = threading.Lock()
        # Before the file is read: another run may be writing to it.
        self._lock_file = _lock_record(path)
        try:
            self._entries = _resume_record(path)
            if others := {entry.backend for entry in self._entries.values()} - {name}:
                raise UserError(f"{path} was recorded from {min(others)}, not {name}.", "Use another file.")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lock_file.close()

    def search(self, query: str) -> tuple[SearchResult, ...]:
        return tuple(SearchResult(*row) for row in self._get_entry("search", query).require_answer().results)

    def open(self, id: str) -> str:  # noqa: A002
        return self._get_entry("open", id).require_answer().page

    def _get_entry(self, kind: Kind, text: str) -> RecordedAnswer:
        with self._lock:
            if (recorded := self._entries.get((kind, text))) and not recorded.error:
                return recorded
        entry = self._ask_backend(kind, text)  # without the lock, so that other queries need not wait
        with self._lock:
            # Another thread may have asked the same in the meantime; there is one answer per query.
            if (recorded := self._entries.get((kind, text))) and not recorded.error:
                return recorded
            self._entries[kind, text] = entry
            with self._path.open("a", encoding="utf-8") as record:
                record.write(entry.model_dump_json() + "\n")
        return entry

    def _ask_backend(self, kind: Kind, text: str) -> RecordedAnswer:
        entry = RecordedAnswer(kind=kind, text=text, backend=self._name, time=self._clock())
        try:
            if kind == "open":
                return entry.model_copy(update={"page": self._backend.open(text)})
            results = self._backend.search(text)
        except ExternalServiceError as error:
            failure = {
                "error": str(error) or type(error).__name__,
                "refused": isinstance(error, QueryRefused),
            }
            return entry.model_copy(update=failure)
        rows = tuple((result.id, result.title, result.snippet) for result in results)
        return entry.model_copy(update={"results": rows})


class ReplayBackend:
    """Answer from a recording alone."""

    def __init__(self, path: Path) -> None:
        self._entries = read_search_record(path)
        self._lock = threading.Lock()
        self.missing = 0
        """Number of queries that the recording has no answer to."""

    def search(self, query: str) -> tuple[SearchResult, ...]:
        return tuple(SearchResult(*row) for row in self._get_entry("search", query).require_answer().results)

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
    """Read the answers of a recording, the last one per query. A truncated last line is ignored."""
    try:
        lines = path.read_bytes().split(b"\n")
        entries = [RecordedAnswer.model_validate_json(line) for line in lines[:-1] if line]
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is not a search recording: {error}") from error
    return {(entry.kind, entry.text): entry for entry in entries}


def _lock_record(path: Path) -> BinaryIO:
    """Open a recording and lock it for writing until it is closed."""
    try:
        file = path.open("ab")
    except OSError as error:
        raise UserError(f"Cannot record searches in {path}: {error.strerror}.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UserError(f"Another run is recording its searches in {path}.", "Use another file.") from error
    return file


def _resume_record(path: Path) -> dict[tuple[Kind, str], RecordedAnswer]:
    """Read a recording that is to be continued, and remove a truncated last line from the file."""
    entries = read_search_record(path)
    # Or else the next answer would be appended to half a line.
    with path.open("r+b") as record:
        record.truncate(record.read().rfind(b"\n") + 1)
    return entries
