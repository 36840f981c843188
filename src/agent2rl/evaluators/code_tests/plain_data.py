"""Serialize plain data between trusted tests and an untrusted program.

Plain data is None, booleans, ints of any size, exact floats and complex numbers, fractions, decimals, text,
bytes, and lists, tuples, sets and dicts of plain data. An instance of a subclass (a Counter, a namedtuple) is
sent as its base type. So no received value has a method that the program wrote, and `==` can be trusted.

The format is that of `marshal`, version 2. It has no fractions and decimals: they are sent as a tuple that
begins with `...`, which is not plain data itself. The interpreter writes the format in one call that touches
little memory, which matters in a child that has just been forked. `loads_trusted` is only for trusted data.
Values of a program are read by `loads`, which has limits and checks every byte.
"""

import marshal
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

FRAME_BYTES = 4 << 20
DEPTH = 50
FORMAT = 2
FRACTION_BITS = 1 << 16
NUMBER_TAGS = (b"(\2\0\0\0.", b"(\3\0\0\0.")
"""How decimals and fractions begin: a tuple of two or three items, the first of them `...`."""
KINDS = (int, str, float, list, tuple, dict, set, frozenset, bytes, bytearray, complex, Fraction, Decimal)


class NotPlain(Exception):
    """A value that is not plain data; the message names its type."""


def dumps(value: Any) -> bytes:
    """Return the value as bytes."""
    try:
        return marshal.dumps(value, FORMAT)
    except ValueError:  # something in it is not exactly of a builtin type
        return marshal.dumps(make_plain(value), FORMAT)


def make_plain(value: Any, depth: int = DEPTH) -> Any:
    """Copy a value into builtin types, using the methods of these types and not of subclasses."""
    if value is None or value is True or value is False:
        return value
    kind = next((kind for kind in KINDS if isinstance(value, kind)), None)
    if kind is None:
        raise NotPlain(type(value).__name__)
    if not depth:
        raise NotPlain(f"data nested more than {DEPTH} deep")
    if kind is dict:
        return {make_plain(key, depth - 1): make_plain(item, depth - 1) for key, item in dict.items(value)}
    if kind in (list, tuple, set, frozenset):
        return kind(make_plain(item, depth - 1) for item in kind.__iter__(value))
    return COPIES[kind](value)


COPIES: dict[type, Callable[[Any], Any]] = {
    int: int.__index__,
    str: str.__str__,
    # Adding -0.0 changes no value, not even -0.0 itself, and gives an exact float.
    float: lambda value: float.__add__(value, -0.0),
    complex: lambda value: complex.__add__(value, complex(-0.0, -0.0)),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytes(bytearray.__getitem__(value, slice(None))),
    Fraction: lambda value: (..., int(value.numerator), int(value.denominator)),
    Decimal: lambda value: (..., Decimal.__str__(value)),
}


def loads_trusted(data: bytes) -> Any:
    return loads(data) if any(tag in data for tag in NUMBER_TAGS) else marshal.loads(data)


def loads(data: bytes) -> Any:
    """Read a value; raise ValueError for invalid bytes and NotPlain for data that is nested too deeply."""
    reader = _PlainDataReader(data)
    value = reader.read_value(DEPTH)
    if reader.at != len(data):
        raise ValueError("more bytes than its value has")
    return value


class _PlainDataReader:
    """Reads values from bytes, one after another."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take_bytes(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise ValueError("fewer bytes than it says")
        piece, self.at = self.data[self.at : end], end
        return piece

    def read_number(self) -> int:
        return int.from_bytes(self.take_bytes(4), "little", signed=True)

    def read_value(self, depth: int) -> Any:
        tag = self.take_bytes(1)
        read = READERS.get(tag)
        if read is None:
            raise ValueError(f"the tag {tag!r} is not one of plain data")
        if depth < 0:
            raise NotPlain(f"data nested more than {DEPTH} deep")
        return read(self, depth - 1)

    def items(self, depth: int) -> list[Any]:
        size = self.read_number()
        # Each item has at least a byte, so a false number of items cannot fill the memory.
        if size > len(self.data) - self.at:
            raise ValueError("more items than bytes")
        return [self.read_value(depth) for _ in range(size)]

    def read_tuple(self, depth: int) -> Any:
        if self.data[self.at - 1 : self.at + 5] not in NUMBER_TAGS:
            return tuple(self.items(depth))
        size = self.read_number()
        self.at += 1
        return _build_number([self.read_value(depth) for _ in range(size - 1)])

    def read_pairs(self, depth: int) -> dict[Any, Any]:
        pairs = {}
        while self.data[self.at : self.at + 1] != b"0":
            key = self.read_value(depth)
            pairs[_require_hashable(key)] = self.read_value(depth)
        self.at += 1
        return pairs

    def read_long(self) -> int:
        """Read digits of 15 bits, lowest first. Goes through binary text, which takes linear time."""
        size = self.read_number()
        digits = struct.unpack(f"<{abs(size)}H", self.take_bytes(2 * abs(size)))
        if not digits or max(digits) >> 15:
            raise ValueError("not the digits of an int")
        number = int("".join(f"{digit:015b}" for digit in reversed(digits)), 2)
        return number if size > 0 else -number


def _build_number(parts: list[Any]) -> Fraction | Decimal:
    match parts:
        # A fraction is reduced when it is made, which takes long for huge numbers.
        case [int(top), int(bottom)] if bottom > 0 and max(top, -top, bottom).bit_length() <= FRACTION_BITS:
            return Fraction(top, bottom)
        case [str(text)]:
            try:
                return Decimal(text)
            except ArithmeticError:
                pass
    raise ValueError("not the parts of a fraction or a decimal")


def _require_hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        raise ValueError("a key or item of a set that cannot be one") from None
    return value


READERS: dict[bytes, Callable[[_PlainDataReader, int], Any]] = {
    b"N": lambda _, __: None,
    b"T": lambda _, __: True,
    b"F": lambda _, __: False,
    b"i": lambda reader, _: reader.read_number(),
    b"l": lambda reader, _: reader.read_long(),
    b"g": lambda reader, _: struct.unpack("<d", reader.take_bytes(8))[0],
    b"y": lambda reader, _: complex(*struct.unpack("<dd", reader.take_bytes(16))),
    b"s": lambda reader, _: reader.take_bytes(reader.read_number()),
    b"u": lambda reader, _: reader.take_bytes(reader.read_number()).decode("utf-8", "surrogatepass"),
    b"[": lambda reader, depth: reader.items(depth),
    b"(": lambda reader, depth: reader.read_tuple(depth),
    b"<": lambda reader, depth: {_require_hashable(item) for item in reader.items(depth)},
    b">": lambda reader, depth: frozenset(_require_hashable(item) for item in reader.items(depth)),
    b"{": lambda reader, depth: reader.read_pairs(depth),
}


def build_frame(kind: bytes, value: Any = None) -> bytes:
    """Return a message: its length, its kind in one byte, and a value."""
    body = dumps(value)
    if len(body) > FRAME_BYTES:
        raise NotPlain(f"{len(body):,} bytes of data; the limit is {FRAME_BYTES:,}")
    return len(body).to_bytes(4, "big") + kind + body


def read_frame(read: Callable[[int], bytes]) -> tuple[bytes, bytes] | None:
    """Return the kind and the undecoded value of the next message; None at the end of the connection.

    `read` returns at most the given number of bytes, and none at the end.
    """
    head = _read_exactly(read, 5)
    if head is None:
        return None
    size = int.from_bytes(head[:4], "big")
    if size > FRAME_BYTES:
        raise ValueError("a frame that is too long")
    body = _read_exactly(read, size)
    return None if body is None else (head[4:], body)


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes | None:
    data = read(size)
    while 0 < len(data) < size:
        piece = read(size - len(data))
        if not piece:
            return None
        data += piece
    return data if len(data) == size else None
