"""The text in any file, a chunk at a time.

What is not text (pickles, data bases, numpy arrays, uncompressed parquet) shows its strings, as the program
`extract_strings` would. gzip, bzip2, xz and zip are known by their first bytes and looked into, also in each
other, but for a zip inside something. Of a safetensors file only the header is read.

Not covered: zstd, 7z, rar, compressed parquet, encrypted archives, pictures, and files made to deceive.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

import numpy as np

Stream = IO[bytes]

CHUNK_BYTES = 1 << 20
NESTED = 3
ZIP_DIRECTORY_BYTES = 4 << 20
HEADER_BYTES = 4 << 20
LEAST_STRING_BYTES = 24
CONTROL = np.isin(np.arange(256), [*range(9), *range(14, 32), 127])
ZIP = b"PK\3\4"
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # first, because it begins as UTF-16's does
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class NestedTooDeep(Exception):
    """An archive lies too deep in others to be looked into."""


@dataclass
class TextExtractor:
    """Reads one open, unbuffered file after another."""

    tensor_bytes: int = 0
    """Passed over so far."""

    def extract_chunks(self, file: Stream, depth: int = 0) -> Iterator[bytes]:
        """What is in a file, or packed in it. A damaged archive raises whatever its parser does."""
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
    """Bytes to text: UTF-16 and UTF-32 where a mark says so, else UTF-8 with what is none of it replaced."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._wide = False

    def decode_chunk(self, chunk: bytes) -> str:
        if self._decoder is None:
            coding = next((name for mark, name in MARKS if chunk.startswith(mark)), "utf-8")
            self._decoder, self._wide = codecs.getincrementaldecoder(coding)("replace"), coding != "utf-8"
        return self._decoder.decode(chunk if self._wide else extract_strings(chunk))


def extract_strings(chunk: bytes) -> bytes:
    """Text as it is; of anything else what could be text. UTF-16 and UTF-32 lose the zeros in between."""
    if chunk.count(0) > len(chunk) // 4:
        chunk = chunk.replace(b"\0", b"")
    control = np.flatnonzero(CONTROL[np.frombuffer(chunk, np.uint8)])
    if len(control) <= len(chunk) // 50:
        return chunk
    edges = np.concatenate(([-1], control, [len(chunk)]))
    long = np.diff(edges) > LEAST_STRING_BYTES
    long[[0, -1]] = True  # the rest of these may be in the next chunk
    return b"\0".join(chunk[edges[at] + 1 : edges[at + 1]] for at in np.flatnonzero(long))


def _open_compressed(reader: Stream, head: bytes) -> Stream | None:
    if head.startswith(b"\x1f\x8b"):
        return cast(Stream, gzip.GzipFile(fileobj=reader))
    if head.startswith(b"BZh"):
        return bz2.BZ2File(reader)
    return lzma.LZMAFile(reader) if head.startswith(b"\xfd7zXZ\0") else None


class _BoundedZipFile(io.BufferedIOBase):
    """A file that is not read in one go: a zip's directory comes whole into memory, many times its size."""

    def __init__(self, file: Stream) -> None:
        self._file = file

    def read(self, size: int | None = -1, /) -> bytes:
        found = self._file.read(ZIP_DIRECTORY_BYTES + 1 if size is None or size < 0 else size)
        if len(found) > ZIP_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("its directory is too large")
        return found

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _find_tensors_begin(reader: Stream, head: bytes) -> int:
    """Where a safetensors file has numbers and nothing else up to its end; 0 for any other file."""
    length = int.from_bytes(head[:8], "little")
    if head[8:9] != b"{" or length > HEADER_BYTES:
        return 0
    try:
        header = json.loads(reader.read(8 + length)[8:])
        tensors = [value for name, value in header.items() if name != "__metadata__"]
        floats = all("F" in tensor["dtype"] for tensor in tensors)
        end = max(tensor["data_offsets"][1] for tensor in tensors)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        floats, end = False, 0
    size = reader.seek(0, os.SEEK_END)
    reader.seek(0)
    return 8 + length if floats and size == 8 + length + end else 0
