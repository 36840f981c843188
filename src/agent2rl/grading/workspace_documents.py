"""Read every regular file of an agent's workspace as text, within bounds.

The tree is hostile. No link is followed, only regular files are opened, and bytes, files, seconds and depth
are bounded; whatever is not read is counted with its reason. Small files come first, and likely code or
data before others, so that the bounds cut off what matters least. Binary files yield their printable
strings. gzip, bzip2, xz and zip are recognised by their first bytes and looked into, also nested, except
for a zip inside something. Of a safetensors file only the header is read.

Not supported: zstd, 7z, rar, compressed parquet, encrypted archives, images, and deliberately obscured files.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import re
import stat
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import numpy as np

from agent2rl.system.unix import O_CLOEXEC, O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK

# Extraction of text from any file, in chunks.

Stream = IO[bytes]

CHUNK_BYTES = 1 << 20
NESTED = 3
ZIP_DIRECTORY_BYTES = 4 << 20
HEADER_BYTES = 4 << 20
LEAST_STRING_BYTES = 24
CONTROL = np.isin(np.arange(256), [*range(9), *range(14, 32), 127])
ZIP = b"PK\3\4"
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # first, because it begins with UTF-16's mark
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class NestedTooDeep(Exception):
    """An archive is nested too deeply."""


@dataclass
class TextExtractor:
    """Extracts text from open, unbuffered files."""

    tensor_bytes: int = 0
    """Bytes of tensors skipped so far."""

    def extract_chunks(self, file: Stream, depth: int = 0) -> Iterator[bytes]:
        """Yield the content of a file or archive. A damaged archive raises its parser's error."""
        buffered = io.BufferedReader(cast(io.RawIOBase, file), CHUNK_BYTES)
        reader = cast(Stream, buffered)
        head = buffered.peek(16)[:16]
        try:
            if inner := _open_compressed(reader, head):
                if depth >= NESTED:
                    raise NestedTooDeep
                yield from self.extract_chunks(inner, depth + 1)
            elif head.startswith(ZIP):
                if depth:
                    raise NestedTooDeep
                yield from self._extract_members(file)
            elif not depth and (start := _find_tensors_begin(reader, head)):
                self.tensor_bytes += os.fstat(file.fileno()).st_size - start
                yield reader.read(start)
            else:
                yield from read_plain_chunks(reader)
        finally:
            # A reader that is collected would close the file, which is read again if an archive is
            # damaged.
            buffered.detach()

    def _extract_members(self, file: Stream) -> Iterator[bytes]:
        file.seek(0)
        with zipfile.ZipFile(cast(Stream, _BoundedZipFile(file))) as archive:
            for info in archive.infolist():
                with archive.open(info) as member:
                    yield from self.extract_chunks(member, 1)


def read_plain_chunks(file: Stream) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


class TextDecoder:
    """Decodes UTF-16 and UTF-32 with a byte order mark, else UTF-8 with replacement of invalid bytes."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._wide = False

    def decode_chunk(self, chunk: bytes) -> str:
        if self._decoder is None:
            coding = next((name for mark, name in MARKS if chunk.startswith(mark)), "utf-8")
            self._decoder, self._wide = codecs.getincrementaldecoder(coding)("replace"), coding != "utf-8"
        return self._decoder.decode(chunk if self._wide else extract_strings(chunk))


def extract_strings(chunk: bytes) -> bytes:
    """Return text unchanged, and the printable strings of binary data; UTF-16 and UTF-32 lose their zeros."""
    if chunk.count(0) > len(chunk) // 4:
        chunk = chunk.replace(b"\0", b"")
    control = np.flatnonzero(CONTROL[np.frombuffer(chunk, np.uint8)])
    if len(control) <= len(chunk) // 50:
        return chunk
    edges = np.concatenate(([-1], control, [len(chunk)]))
    long = np.diff(edges) > LEAST_STRING_BYTES
    long[[0, -1]] = True  # these may continue in the next chunk
    return b"\0".join(chunk[edges[at] + 1 : edges[at + 1]] for at in np.flatnonzero(long))


def _open_compressed(reader: Stream, head: bytes) -> Stream | None:
    if head.startswith(b"\x1f\x8b"):
        return cast(Stream, gzip.GzipFile(fileobj=reader))
    if head.startswith(b"BZh"):
        return bz2.BZ2File(reader)
    return lzma.LZMAFile(reader) if head.startswith(b"\xfd7zXZ\0") else None


class _BoundedZipFile(io.BufferedIOBase):
    """A file with limited reads: a zip's directory is loaded completely, at many times its size."""

    def __init__(self, file: Stream) -> None:
        self._file = file

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._file.read(ZIP_DIRECTORY_BYTES + 1 if size is None or size < 0 else size)
        if len(data) > ZIP_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("its directory is too large")
        return data

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _find_tensors_begin(reader: Stream, head: bytes) -> int:
    """Return the offset of the tensor data in a safetensors file; 0 for any other file."""
    length = int.from_bytes(head[:8], "little")
    if head[8:9] != b"{" or length > HEADER_BYTES:
        return 0
    try:
        header = json.loads(reader.read(8 + length)[8:])
        tensors = [value for name, value in header.items() if name != "__metadata__"]
        # Integers could be letters, so their bytes are read.
        floats = all("F" in tensor["dtype"] for tensor in tensors)
        end = max(tensor["data_offsets"][1] for tensor in tensors)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        floats, end = False, 0
    size = reader.seek(0, os.SEEK_END)
    reader.seek(0)
    # What lies behind the tensors could be anything: then it is read like any other file.
    return 8 + length if floats and size == 8 + length + end else 0


DIRECTORY = os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
FILE = os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC
TELLING = re.compile(
    r"\.(py|ipynb|sh|md|txt|log|jsonl?|csv|tsv|ya?ml|toml|xml|html|sql|gz|bz2|xz|zip|parquet|arrow|pkl|pickle"
    r"|npy|npz|db|sqlite)$",
    re.IGNORECASE,
)
GIVEN = ("data", "models")
"""Folders that were read-only for the agent, so they are read last."""

UNREADABLE, DAMAGED, PACKED = "cannot be opened", "damaged or locked archive", "archive in an archive"
TOO_MANY, TOO_DEEP, TOO_LONG = "too many files", "too deep", "too long, read in part"
NO_TIME, NO_ROOM = "no time left", "too much in all"


@dataclass(frozen=True)
class ReadBounds:
    files: int = 200_000
    bytes: int = 8 << 30
    """Total of all files, decompressed."""
    file_bytes: int = 1 << 30
    """Limit of one file, decompressed."""
    seconds: float = 300
    depth: int = 200
    """Maximum depth; each level needs a file descriptor."""


@dataclass
class WorkspaceDocument:
    path: str
    chunks: Iterator[str]
    """The text; it must be read before the next document."""


@dataclass
class UnreadCount:
    """Files that were not read for one reason."""

    files: int = 0
    bytes: int = 0


@dataclass(order=True, frozen=True)
class _FileEntry:
    rank: int
    size: int
    parts: tuple[str, ...]


class _BoundReached(Exception):
    """A bound is reached."""


@dataclass
class WorkspaceDocuments:
    """Reads the documents of a workspace. The counts are complete when `read_documents` has ended."""

    root: Path
    bounds: ReadBounds = ReadBounds()
    read_files: int = 0
    read_bytes: int = 0
    """Decompressed."""
    left_out: dict[str, UnreadCount] = field(default_factory=dict)
    texts: TextExtractor = field(default_factory=TextExtractor)
    skipped: frozenset[str] = frozenset()
    """Folders of the root that are not read."""

    def read_documents(self, only: str | None = None) -> Iterator[WorkspaceDocument]:
        """Yield all documents, or the one with this name in the root."""
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
        with os.scandir(directory) as listing:
            for each in listing:
                try:
                    status = each.stat(follow_symlinks=False)
                except OSError:
                    self._count_unread(UNREADABLE)
                    continue
                if stat.S_ISDIR(status.st_mode):
                    folders.append(each.name)
                elif stat.S_ISREG(status.st_mode):
                    self._add_entry((*parts, each.name), status)
        # After the listing is closed, so that each level needs one descriptor and not two.
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
        """Add a file; a file with several names counts once."""
        inode = (status.st_dev, status.st_ino)
        if inode in self._linked:
            return
        if status.st_nlink > 1:
            self._linked.add(inode)
        if len(self._entries) >= self.bounds.files:
            self._count_unread(TOO_MANY, status.st_size)
            return
        informative = parts[0] == "code" or TELLING.search(parts[-1])
        rank = 2 if len(parts) > 1 and parts[0] in GIVEN else 0 if informative else 1
        self._entries.append(_FileEntry(rank, status.st_size, parts))

    def _count_unread(self, reason: str, size: int = 0) -> None:
        unread = self.left_out.setdefault(reason, UnreadCount())
        unread.files += 1
        unread.bytes += size

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
            # The agent chose the name; it may not be UTF-8.
            path = "/".join(entry.parts).encode(errors="surrogateescape").decode(errors="replace")
            yield WorkspaceDocument(path, self._read_text(file, entry.size))

    def _read_text(self, file: Stream, size: int) -> Iterator[str]:
        """Yield the text of a file; of an unreadable archive, its raw strings."""
        before = self.read_bytes
        try:
            try:
                yield from self._decode_bounded(self.texts.extract_chunks(file), before)
            except _BoundReached:
                raise
            except Exception as error:  # a hostile archive can raise anything
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
    """Open a file unbuffered, folder by folder, so that no link is followed and no path is too long."""
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
