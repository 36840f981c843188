"""Plain data across the line between trusted tests and an untrusted program: frames of tagged JSON.

Plain are None, booleans, ints of any size, floats to the last bit, complex numbers, text, bytes, and lists, tuples,
sets and dicts of plain data. An instance of a subclass (a Counter, a namedtuple) crosses as what it is underneath.
So nothing that arrives has a method that somebody else wrote: `==` means what it says.

What a program sends may be anything. It is read with limits, and is a `ValueError` where it is not as below.

    null true "text" 12 0.5 [..]      themselves
    {"i": "-1f"}                      a long int, in hexadecimal
    {"f": "7ff8000000000000"}         a float that JSON has no word for
    {"c": [re, im]} {"b": "00ff"} {"a": "00ff"} {"t": [..]} {"s": [..]} {"z": [..]} {"d": [[key, value], ..]}
                                      complex, bytes, bytearray, tuple, set, frozenset, dict
"""

import json
import math
import struct
from collections.abc import Callable
from typing import Any

FRAME_BYTES = 4 << 20
DEPTH = 50
SHORT = 10**300
"""Ints below it are written in digits, which is fast for short ones and slow for long ones."""


class NotPlain(Exception):
    """A value that cannot cross; says its type."""


def pack(value: Any, depth: int = DEPTH) -> Any:
    """What JSON can say, or NotPlain. Reads through the builtin's own methods, whatever a subclass has."""
    if value is None or value is True or value is False:
        return value
    for kind, write in WRITERS:
        if isinstance(value, kind):
            if not depth:
                raise NotPlain(f"data nested more than {DEPTH} deep")
            return write(value, depth - 1)
    raise NotPlain(type(value).__name__)


def _int(value: int, _: int) -> Any:
    value = int.__index__(value)
    return value if -SHORT < value < SHORT else {"i": int.__format__(value, "x")}


def _float(value: float, _: int) -> Any:
    value = float.__add__(value, -0.0)
    return value if math.isfinite(value) else {"f": struct.pack(">d", value).hex()}


def _complex(value: complex, depth: int) -> Any:
    return {"c": [_float(value.real, depth), _float(value.imag, depth)]}


def _items(tag: str, kind: type) -> Callable[[Any, int], Any]:
    def write(value: Any, depth: int) -> Any:
        packed = [pack(item, depth) for item in kind.__iter__(value)]
        return {tag: packed} if tag else packed

    return write


def _dict(value: dict[Any, Any], depth: int) -> Any:
    return {"d": [[pack(key, depth), pack(item, depth)] for key, item in dict.items(value)]}


WRITERS: tuple[tuple[type, Callable[[Any, int], Any]], ...] = (
    (int, _int),
    (str, lambda value, _: str.__str__(value)),
    (float, _float),
    (list, _items("", list)),
    (tuple, _items("t", tuple)),
    (dict, _dict),
    (set, _items("s", set)),
    (frozenset, _items("z", frozenset)),
    (bytes, lambda value, _: {"b": bytes.hex(value)}),
    (bytearray, lambda value, _: {"a": bytearray.hex(value)}),
    (complex, _complex),
)


def unpack(found: Any, depth: int = DEPTH) -> Any:
    """The value again, or ValueError where nobody packed this."""
    if found is None or isinstance(found, (bool, int, float, str)):
        return found
    if depth <= 0:
        raise ValueError("nested too deeply")
    if isinstance(found, list):
        return [unpack(item, depth - 1) for item in found]
    if not isinstance(found, dict) or len(found) != 1:
        raise ValueError("not a tagged value")
    ((tag, body),) = found.items()
    try:
        return READERS[tag](body, depth - 1)
    except (KeyError, TypeError, struct.error) as error:
        raise ValueError(f"malformed: {type(error).__name__}") from None


def _list(body: Any, depth: int) -> list[Any]:
    if not isinstance(body, list):
        raise ValueError("not a list")
    return [unpack(item, depth) for item in body]


def _number(found: Any) -> float:
    value = unpack(found)
    if not isinstance(value, float):
        raise ValueError("not a float")
    return value


READERS: dict[str, Callable[[Any, int], Any]] = {
    "i": lambda body, _: int(body, 16),
    "f": lambda body, _: struct.unpack(">d", bytes.fromhex(body))[0],
    "c": lambda body, _: complex(_number(body[0]), _number(body[1])),
    "b": lambda body, _: bytes.fromhex(body),
    "a": lambda body, _: bytearray.fromhex(body),
    "t": lambda body, depth: tuple(_list(body, depth)),
    "s": lambda body, depth: set(_list(body, depth)),
    "z": lambda body, depth: frozenset(_list(body, depth)),
    "d": lambda body, depth: {unpack(key, depth): unpack(item, depth) for key, item in body},
}


def frame(message: dict[str, Any]) -> bytes:
    """A message as it goes over the line. The caller has packed what values are in it."""
    body = json.dumps(message).encode()
    if len(body) > FRAME_BYTES:
        raise NotPlain(f"{len(body):,} bytes of data; the limit is {FRAME_BYTES:,}")
    return len(body).to_bytes(4, "big") + body


def message(read: Callable[[int], bytes]) -> dict[str, Any] | None:
    """The next message; None at the end of the line. `read` gives at most so many bytes, and none at the end."""
    head = _exactly(read, 4)
    if head is None:
        return None
    size = int.from_bytes(head, "big")
    if size > FRAME_BYTES:
        raise ValueError("a frame that is too long")
    body = _exactly(read, size)
    if body is None:
        return None
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not a message")
    return found


def _exactly(read: Callable[[int], bytes], size: int) -> bytes | None:
    pieces = []
    while size:
        piece = read(min(size, 1 << 18))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
