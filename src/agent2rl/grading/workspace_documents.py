"""Reads what an agent left: every regular file below a directory, as text, within bounds.

The tree is hostile. No link is followed, nothing but regular files is opened, and bytes, files, seconds and
depth are bounded; whatever is not read is counted with its reason. Small files come first, and those that
look like code or data before others, so that the bounds cut off what matters least. `text_extraction` knows
what text a file holds.
"""

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl.grading.text_extraction import (
    NestedTooDeep,
    Stream,
    TextDecoder,
    TextExtractor,
    read_plain_chunks,
)

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
TELLING = re.compile(
    r"\.(py|ipynb|sh|md|txt|log|jsonl?|csv|tsv|ya?ml|toml|xml|html|sql|gz|bz2|xz|zip|parquet|arrow|pkl|pickle"
    r"|npy|npz|db|sqlite)$",
    re.IGNORECASE,
)
GIVEN = ("data", "models")
"""Mounted read-only while the agent worked, so read last."""

UNREADABLE, DAMAGED, PACKED = "cannot be opened", "damaged or locked archive", "archive in an archive"
TOO_MANY, TOO_DEEP, TOO_LONG = "too many files", "too deep", "too long, read in part"
NO_TIME, NO_ROOM = "no time left", "too much in all"


@dataclass(frozen=True)
class ReadBounds:
    files: int = 200_000
    bytes: int = 8 << 30
    """Of all files together, unpacked."""
    file_bytes: int = 1 << 30
    """Of one file, unpacked."""
    seconds: float = 300
    depth: int = 200
    """One descriptor is held for each level."""


@dataclass
class WorkspaceDocument:
    path: str
    chunks: Iterator[str]
    """What stands in it; to be read before the next document is asked for."""


@dataclass
class UnreadCount:
    """What was not read, for one reason."""

    files: int = 0
    bytes: int = 0


@dataclass(order=True, frozen=True)
class _FileEntry:
    rank: int
    size: int
    parts: tuple[str, ...]


class _BoundReached(Exception):
    """A bound is reached; says which."""


@dataclass
class WorkspaceDocuments:
    """`documents` reads; the counts are whole when it has ended."""

    root: Path
    bounds: ReadBounds = ReadBounds()
    read_files: int = 0
    read_bytes: int = 0
    """Unpacked."""
    left_out: dict[str, UnreadCount] = field(default_factory=dict)
    texts: TextExtractor = field(default_factory=TextExtractor)
    skipped: frozenset[str] = frozenset()
    """Folders of the root that are not looked into."""

    def read_documents(self, only: str | None = None) -> Iterator[WorkspaceDocument]:
        """All files, or the one with this name in the root."""
        self._deadline = time.monotonic() + self.bounds.seconds
        self._entries: list[_FileEntry] = []
        self._linked: set[tuple[int, int]] = set()
        root = os.open(self.root, DIRECTORY)
        try:
            if only is None:
                self._list_directory(root, ())
            else:
                self._add_entry((only,), os.stat(only, dir_fd=root, follow_symlinks=False))
            for entry in sorted(self._entries):
                if reason := self._find_spent_bound():
                    self._count_unread(reason, entry.size)
                else:
                    yield from self._open_document(root, entry)
        finally:
            os.close(root)

    def _list_directory(self, directory: int, parts: tuple[str, ...]) -> None:
        folders = []
        with os.scandir(directory) as found:
            for each in found:
                try:
                    status = each.stat(follow_symlinks=False)
                except OSError:
                    self._count_unread(UNREADABLE)
                    continue
                if stat.S_ISDIR(status.st_mode):
                    folders.append(each.name)
                elif stat.S_ISREG(status.st_mode):
                    self._add_entry((*parts, each.name), status)
        for name in folders:
            if not parts and name in self.skipped:
                continue
            self._list_folder(directory, name, parts)

    def _list_folder(self, parent: int, name: str, parts: tuple[str, ...]) -> None:
        if len(parts) >= self.bounds.depth:
            self._count_unread(TOO_DEEP)
            return
        if time.monotonic() > self._deadline:
            self._count_unread(NO_TIME)
            return
        try:
            folder = os.open(name, DIRECTORY, dir_fd=parent)
        except OSError:
            self._count_unread(UNREADABLE)
            return
        try:
            self._list_directory(folder, (*parts, name))
        finally:
            os.close(folder)

    def _add_entry(self, parts: tuple[str, ...], status: os.stat_result) -> None:
        """A file with several names counts once."""
        inode = (status.st_dev, status.st_ino)
        if inode in self._linked:
            return
        if status.st_nlink > 1:
            self._linked.add(inode)
        if len(self._entries) >= self.bounds.files:
            self._count_unread(TOO_MANY, status.st_size)
            return
        telling = parts[0] == "code" or TELLING.search(parts[-1])
        rank = 2 if len(parts) > 1 and parts[0] in GIVEN else 0 if telling else 1
        self._entries.append(_FileEntry(rank, status.st_size, parts))

    def _count_unread(self, reason: str, size: int = 0) -> None:
        left = self.left_out.setdefault(reason, UnreadCount())
        left.files += 1
        left.bytes += size

    def _find_spent_bound(self) -> str:
        if time.monotonic() > self._deadline:
            return NO_TIME
        return NO_ROOM if self.read_bytes >= self.bounds.bytes else ""

    def _open_document(self, root: int, entry: _FileEntry) -> Iterator[WorkspaceDocument]:
        try:
            file = _open_file(root, entry.parts)
        except OSError:
            self._count_unread(UNREADABLE, entry.size)
            return
        self.read_files += 1
        with file:
            # A name is the agent's too, and need not be UTF-8.
            path = "/".join(entry.parts).encode(errors="surrogateescape").decode(errors="replace")
            yield WorkspaceDocument(path, self._read_text(file, entry.size))

    def _read_text(self, file: Stream, size: int) -> Iterator[str]:
        """The text of a file; where its archive cannot be read, what lies open in it."""
        before = self.read_bytes
        try:
            try:
                yield from self._decode_bounded(self.texts.extract_chunks(file), before)
            except _BoundReached:
                raise
            except Exception as error:  # whatever a parser makes of a hostile archive
                self._count_unread(PACKED if isinstance(error, NestedTooDeep) else DAMAGED)
                file.seek(0)
                yield from self._decode_bounded(read_plain_chunks(file), before)
        except _BoundReached as stop:
            self._count_unread(str(stop), max(0, size - (self.read_bytes - before)))
        except OSError:
            self._count_unread(UNREADABLE, size)

    def _decode_bounded(self, chunks: Iterator[bytes], before: int) -> Iterator[str]:
        decoder = TextDecoder()
        for chunk in chunks:
            self.read_bytes += len(chunk)
            yield decoder.decode_chunk(chunk)
            if reason := self._find_spent_bound():
                raise _BoundReached(reason)
            if self.read_bytes - before >= self.bounds.file_bytes:
                raise _BoundReached(TOO_LONG)


def _open_file(root: int, parts: tuple[str, ...]) -> Stream:
    """Step by step, so that no link is followed and no path is too long. Unbuffered."""
    directory = os.dup(root)
    try:
        for part in parts[:-1]:
            below = os.open(part, DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
        descriptor = os.open(parts[-1], FILE, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file any more")
    return open(descriptor, "rb", buffering=0)
