"""Bound what the git objects of a record of code inflate to, before a git library reads them.

A kilobyte of zlib data may stand for a megabyte, and the libraries inflate an object in one piece. What our
recorder writes has plain objects only, so a pack with deltas, which may refer to each other, is refused. So
is an index that names other places of the pack than those at which an object begins, and whatever leads to
another repository.
"""

import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Self

OBJECT_BYTES = 64 << 20
"""A file of a revision has at most 1 MiB; a folder may have more entries than that."""
OBJECTS_BYTES = 4 << 30
MOST_OBJECTS = 2_000_000
PACK_HEADER_BYTES = 12
CHECKSUM_BYTES = 20
INDEX_BYTES = 64 << 20
INDEX_HEADER_BYTES, NAME_BYTES, WORD_BYTES = 8 + 256 * 4, 20, 4
TYPES = {1, 2, 3}
"""Commits, trees and blobs. Not 6 and 7, the deltas, nor 4, tags."""
CONFIG_BYTES = 4096
CODE_CONFIG = re.compile(
    rb"\[core\]\n(\t(repositoryformatversion = 0|(filemode|bare|logallrefupdates|symlinks|ignorecase) = "
    rb"(true|false))\n)*"
)
"""What git writes itself. Other settings may name programs or other places."""
ELSEWHERE = {".git", "commondir", "gitdir", "objects/info/alternates", "objects/pack/multi-pack-index"}
"""Files by which git reads another repository, or other places of a pack than its index names."""
CHUNK_BYTES = 1 << 20


class InvalidObjects(ValueError):
    """These are not git objects as our recorder writes them; the text says why."""


class DamagedObject(InvalidObjects):
    """The zlib data of an object end early or are not zlib data."""


class ObjectScanner:
    """Inflates git objects as their bytes come, and keeps nothing of them."""

    def __init__(self, objects: int | None) -> None:
        self._left = objects
        """Objects that must follow in a pack; None: its header must come first."""
        self._state: Callable[[bytes], bytes] = self._read_pack_header
        self._held = b""
        self._inflater = zlib.decompressobj()
        self._size = 0
        self._expected: int | None = None
        self._total = 0
        self._read_bytes = 0
        self.offsets: set[int] = set()
        """Where the objects of a pack begin."""

    @classmethod
    def for_pack(cls) -> Self:
        return cls(None)

    @classmethod
    def for_loose_object(cls) -> Self:
        scanner = cls(1)
        scanner._state = scanner._inflate
        return scanner

    @property
    def inflated_bytes(self) -> int:
        return self._total

    def feed(self, data: bytes) -> None:
        """Read more bytes; raise if they are not objects of an acceptable size."""
        self._held += data
        self._read_bytes += len(data)
        while self._held:
            before, state = len(self._held), self._state
            self._held = self._state(self._held)
            if len(self._held) == before and self._state == state:
                return  # it needs more

    def _read_pack_header(self, data: bytes) -> bytes:
        if len(data) < PACK_HEADER_BYTES:
            return data
        if data[:8] != b"PACK\0\0\0\2":
            raise InvalidObjects("a pack of the record of code is not a git pack")
        self._left = int.from_bytes(data[8:12], "big")
        if self._left > MOST_OBJECTS:
            raise InvalidObjects(f"the record of code has {self._left:,} objects")
        self._state = self._read_object_header if self._left else self._read_rest
        return data[PACK_HEADER_BYTES:]

    def _read_object_header(self, data: bytes) -> bytes:
        end = next((index for index, byte in enumerate(data[:16]) if byte < 0x80), None)
        if end is None:
            if len(data) >= 16:
                raise InvalidObjects("an object of the record of code has no size")
            return data
        kind, size = data[0] >> 4 & 7, data[0] & 15
        for place, byte in enumerate(data[1 : end + 1]):
            size |= (byte & 0x7F) << (4 + 7 * place)
        if kind not in TYPES:
            raise InvalidObjects("the record of code has objects of a kind that is never recorded")
        if size > OBJECT_BYTES:
            raise InvalidObjects(f"an object of the record of code has {size:,} bytes")
        self.offsets.add(self._read_bytes - len(data))
        self._expected, self._size, self._inflater = size, 0, zlib.decompressobj()
        self._state = self._inflate
        return data[end + 1 :]

    def _inflate(self, data: bytes) -> bytes:
        try:
            while True:
                inflated = len(self._inflater.decompress(data, 1 << 20))
                self._size += inflated
                self._total += inflated
                if self._size > OBJECT_BYTES or self._total > OBJECTS_BYTES:
                    raise InvalidObjects("the objects of the record of code inflate without end")
                data = self._inflater.unconsumed_tail
                if self._inflater.eof or not (data or inflated):
                    break
        except zlib.error as error:
            raise DamagedObject("an object of the record of code is damaged") from error
        return self._end_object() if self._inflater.eof else b""

    def _end_object(self) -> bytes:
        if self._expected not in (None, self._size):
            raise InvalidObjects("an object of the record of code has another size than it says")
        assert self._left is not None
        self._left -= 1
        is_loose = self._expected is None
        self._state = self._read_rest if is_loose or not self._left else self._read_object_header
        return self._inflater.unused_data

    def _read_rest(self, _: bytes) -> bytes:
        """Ignore the checksum, which the git library compares."""
        return b""


def read_index_offsets(content: bytes) -> set[int]:
    """Return the places in a pack that its index names."""
    count = int.from_bytes(content[INDEX_HEADER_BYTES - WORD_BYTES : INDEX_HEADER_BYTES], "big")
    begin = INDEX_HEADER_BYTES + count * (NAME_BYTES + WORD_BYTES)
    end = begin + count * WORD_BYTES
    if content[:8] != b"\xfftOc\0\0\0\2" or len(content) != end + 2 * CHECKSUM_BYTES:
        raise InvalidObjects("the index of the record of code is not a git index of less than 2 GiB")
    words = (content[place : place + WORD_BYTES] for place in range(begin, end, WORD_BYTES))
    return {int.from_bytes(word, "big") for word in words}


def check_repository(path: Path) -> None:
    """Raise InvalidObjects or OSError if a bare repository is not safe to read. It may be somebody else's.

    Links lead out of it, and a pipe blocks its reader. Objects of an active run come and go.
    """
    total = 0
    for file in _list_plain_files(path):
        name = file.relative_to(path).as_posix()
        if name in ELSEWHERE:
            raise InvalidObjects(f"{name} may lead elsewhere")
        if name == "config" and not CODE_CONFIG.fullmatch(_read_start(file, CONFIG_BYTES)):
            raise InvalidObjects("its configuration is not git's own")
        if name.startswith("objects/") and name.count("/") == 2 and file.suffix != ".rev":
            with suppress(FileNotFoundError):
                total += _measure_file(file)
        if total > OBJECTS_BYTES:
            raise InvalidObjects("the objects of the record of code inflate without end")


def _list_plain_files(path: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            file = Path(folder, name)
            with suppress(FileNotFoundError):
                mode = file.lstat().st_mode
                if stat.S_ISREG(mode):
                    yield file
                elif not stat.S_ISDIR(mode):
                    raise OSError(f"{name} is neither a file nor a folder")


def _read_start(file: Path, most: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(most + 1)


def _measure_file(file: Path) -> int:
    if file.suffix not in (".pack", ".idx", ""):  # being written
        return 0
    state = file.stat()
    if file.suffix == ".idx":
        if state.st_size > INDEX_BYTES:
            raise InvalidObjects("the index of the record of code is too large")
        return 0
    index = file.with_suffix(".idx").stat() if file.suffix else None
    versions = tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in (state, index) if each)
    return _measure_objects(file, versions)


@lru_cache(maxsize=1 << 16)
def _measure_objects(file: Path, _versions: tuple[tuple[int, int, int], ...]) -> int:
    """Return the bytes that a pack or an object inflates to. Neither changes once it is written."""
    scanner = ObjectScanner.for_pack() if file.suffix else ObjectScanner.for_loose_object()
    with file.open("rb") as opened:
        try:
            while data := opened.read(CHUNK_BYTES):
                scanner.feed(data)
        except DamagedObject:
            # A damaged object of its own file inflates to nothing here, and is reported where it is
            # read.
            if file.suffix:  # places in it cannot be told
                raise
    if file.suffix and read_index_offsets(file.with_suffix(".idx").read_bytes()) != scanner.offsets:
        raise InvalidObjects("the index of the record of code does not fit the pack")
    return scanner.inflated_bytes
