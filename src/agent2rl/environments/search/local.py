"""Searches documents that fit into memory, ranked as Lucene ranks them; the beginning of one is its snippet.

Accents do not count. Not covered: phrases, misspellings, fields.
"""

import hashlib
import json
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from agent2rl.core.errors import UserError, WorldError
from agent2rl.environments.retrieval import Bm25Index
from agent2rl.environments.search.backend import SearchDocument, SearchResult

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
            f"There is nothing to search in {folder}.", f"It wants {CORPUS}, or files *{', *'.join(TEXT_SUFFIXES)}."
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
