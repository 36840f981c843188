"""Bound what the git objects of a bundle inflate to, before a git library reads them.

A kilobyte of zlib data may stand for a megabyte, and the libraries inflate an object in one piece. What our
recorder writes has plain objects only, so a pack with deltas, which may refer to each other, is refused. So
is an index that names other places of the pack than those at which an object begins.
"""

import zlib
from collections.abc import Callable
from typing import Self

from agent2rl.bundles.archive import InvalidBundle

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
            raise InvalidBundle("a pack of its record of code is not a git pack")
        self._left = int.from_bytes(data[8:12], "big")
        if self._left > MOST_OBJECTS:
            raise InvalidBundle(f"its record of code has {self._left:,} objects")
        self._state = self._read_object_header if self._left else self._read_rest
        return data[PACK_HEADER_BYTES:]

    def _read_object_header(self, data: bytes) -> bytes:
        end = next((index for index, byte in enumerate(data[:16]) if byte < 0x80), None)
        if end is None:
            if len(data) >= 16:
                raise InvalidBundle("an object of its record of code has no size")
            return data
        kind, size = data[0] >> 4 & 7, data[0] & 15
        for place, byte in enumerate(data[1 : end + 1]):
            size |= (byte & 0x7F) << (4 + 7 * place)
        if kind not in TYPES:
            raise InvalidBundle("its record of code has objects of a kind that is never recorded")
        if size > OBJECT_BYTES:
            raise InvalidBundle(f"an object of its record of code has {size:,} bytes")
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
                    raise InvalidBundle("the objects of its record of code inflate without end")
                data = self._inflater.unconsumed_tail
                if self._inflater.eof or not (data or inflated):
                    break
        except zlib.error as error:
            raise InvalidBundle("an object of its record of code is damaged") from error
        return self._end_object() if self._inflater.eof else b""

    def _end_object(self) -> bytes:
        if self._expected not in (None, self._size):
            raise InvalidBundle("an object of its record of code has another size than it says")
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
        raise InvalidBundle("the index of its record of code is not a git index of less than 2 GiB")
    words = (content[place : place + WORD_BYTES] for place in range(begin, end, WORD_BYTES))
    return {int.from_bytes(word, "big") for word in words}
