"""The container of a bundle: a tar archive of one exact form, in one Zstandard frame.

The first member is the bundle's record. It lists the names and sizes of all others, in order, so that only
one archive is valid for it. The reader makes each header that must come next and compares the bytes. So
links, devices, sparse files, pax records, repeated or unlisted names and trailing data need no rules of their
own.
"""

import hashlib
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC = b"\x28\xb5\x2f\xfd"
BLOCK = 512
END = bytes(2 * BLOCK)
READ_BYTES = 1 << 16
WINDOW_LOG = 27
"""Memory for decompression: 128 MiB."""
LEVEL, WEIGHTS_LEVEL = 12, 3
"""Weights hardly get smaller, and take long."""


class InvalidBundle(ValueError):
    """The file is not a bundle that this version writes; the text says why."""


@dataclass(frozen=True)
class ArchiveMember:
    name: str
    size: int
    content: Iterable[bytes]


def make_header(name: str, size: int) -> bytes:
    """Return the header of a plain file: no time, no owner, readable by its owner only."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    header = member.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")
    if len(header) != BLOCK:
        raise ValueError(f"the name {name!r} is too long")
    return header


def write_archive(file: BinaryIO, members: Iterable[ArchiveMember], level: int = LEVEL) -> None:
    """Write an archive. The same members give the same bytes, with the same version of the library."""
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        parameter.compression_level: level,
        parameter.checksum_flag: 1,
        # Answers of one submission resemble those of another, megabytes before them.
        parameter.enable_long_distance_matching: 1,
        parameter.window_log: WINDOW_LOG,
    }
    compressor = zstd.ZstdCompressor(options=options)
    for member in members:
        for data in _list_parts(member):
            file.write(compressor.compress(data))
    file.write(compressor.compress(END))
    file.write(compressor.flush())


def _list_parts(member: ArchiveMember) -> Iterator[bytes]:
    yield make_header(member.name, member.size)
    written = 0
    for data in member.content:
        written += len(data)
        yield data
    if written != member.size:
        raise ValueError(f"{member.name} has {written} bytes, not {member.size}")
    yield bytes(-member.size % BLOCK)


class ArchiveReader:
    """Reads an archive front to back. No call reads or keeps more than it returns, up to `READ_BYTES`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG}
        self._decompressor = zstd.ZstdDecompressor(options=options)

    def read_bounded(self, name: str, most: int) -> bytes:
        """Return the content of the next member, which must have this name and at most this size."""
        header = self._read(BLOCK)
        try:
            size = tarfile.TarInfo.frombuf(header, "ascii", "strict").size
        except (tarfile.HeaderError, ValueError) as error:
            raise InvalidBundle(f"expected {name}, found something else") from error
        if not 0 <= size <= most or header != make_header(name, size):
            raise InvalidBundle(f"expected {name}, found something else or a file that is too large")
        return b"".join(self._read_content(size))

    def read_member(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the content of the next member, which must have this name and size."""
        if self._read(BLOCK) != make_header(name, size):
            raise InvalidBundle(f"expected {name} with {size:,} bytes, found something else")
        yield from self._read_content(size)

    def read_end(self) -> None:
        """Require that nothing follows."""
        if self._read(len(END)) != END:
            raise InvalidBundle("there is data after the last listed file")
        while not self._decompressor.eof:
            if self._decompress(1):
                raise InvalidBundle("there is data after the end of the archive")
        if self._decompressor.unused_data or self._file.read(1):
            raise InvalidBundle("there is data after the end of the file")

    def _read_content(self, size: int) -> Iterator[bytes]:
        bytes_left = size
        while bytes_left:
            data = self._read(min(bytes_left, READ_BYTES))
            bytes_left -= len(data)
            yield data
        if any(self._read(-size % BLOCK)):
            raise InvalidBundle("there is data between two files")

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        bytes_left = size
        while bytes_left:
            if self._decompressor.eof:
                raise InvalidBundle("it ends too early")
            data = self._decompress(bytes_left)
            bytes_left -= len(data)
            parts.append(data)
        return b"".join(parts)

    def _decompress(self, most: int) -> bytes:
        data = b""
        if self._decompressor.needs_input:
            data = self._file.read(READ_BYTES)
            if not data:
                raise InvalidBundle("it was cut off: the file ends too early")
        try:
            return self._decompressor.decompress(data, most)
        except zstd.ZstdError as error:
            raise InvalidBundle(f"it is damaged: {error}") from error


def check_content(name: str, content: Iterable[bytes], sha256: str) -> Iterator[bytes]:
    """Yield the content; raise at its end if it has another hash."""
    digest = hashlib.sha256()
    for data in content:
        digest.update(data)
        yield data
    if digest.hexdigest() != sha256:
        raise InvalidBundle(f"{name} has another hash than the bundle's record says")
