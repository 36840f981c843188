"""Read the fields of a protobuf message without its schema.

https://protobuf.dev/programming-guides/encoding. Lengths are checked against the message, so a hostile file
costs no more than its size.
"""

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10


class MalformedMessage(Exception):
    """The bytes are no protobuf message."""


class WireField(NamedTuple):
    number: int
    kind: int
    """Its wire type."""
    value: int
    """Of a varint."""
    data: bytes
    """Of all other types."""


def read_fields(message: bytes) -> Iterator[WireField]:
    """Yield the fields in order; raise MalformedMessage where the bytes cannot be read."""
    place, end = 0, len(message)
    while place < end:
        tag, place = _read_varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = _read_varint(message, place)
            yield WireField(number, kind, value, b"")
            continue
        if kind == BYTES:
            size, place = _read_varint(message, place)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(kind, -1)
        if size < 0 or place + size > end:
            raise MalformedMessage
        yield WireField(number, kind, 0, message[place : place + size])
        place += size


def as_signed(value: int) -> int:
    """Return a varint as a signed 64-bit integer."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for index in range(LONGEST_VARINT):
        if place + index >= len(message):
            break
        byte = message[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise MalformedMessage
