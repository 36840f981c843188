"""Plain data crosses unchanged, to the last bit; anything else does not cross."""

import io
import math
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.evaluators.code_tests import plain_data

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
)
hashable = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.fractions()
    | st.text()
    | st.binary()
)
plain = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(hashable | st.tuples(hashable, hashable), inner)
        | st.frozensets(hashable)
        | st.sets(hashable)
    ),
    max_leaves=10,
)


def crossed(value: Any) -> Any:
    found = plain_data.read_frame(io.BytesIO(plain_data.build_frame(b"R", value)).read)
    assert found is not None
    assert found[0] == b"R"
    return plain_data.loads(found[1])


def same(left: Any, right: Any) -> bool:
    """Equal in type and content, floats by their bits and dicts with their order."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    if isinstance(left, Decimal):
        return bool(left.as_tuple() == right.as_tuple())
    if isinstance(left, complex):
        return same([left.real, left.imag], [right.real, right.imag])
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    return bool(left == right)


@given(plain)
def test_plain_data_crosses_unchanged(value: Any) -> None:
    assert same(crossed(value), value)


@given(plain)
def test_trusted_data_crosses_the_other_way_too(value: Any) -> None:
    assert same(plain_data.loads_trusted(plain_data.dumps(value)), value)


@pytest.mark.parametrize(
    "parts",
    [
        (..., 1, 0),
        (..., 1, -2),
        (..., 1 << 70_000, 3),
        (..., 0.5, 2),
        (..., "one"),
        (..., 1),
        (..., 1, 2, 3),
        (...,),
        (1, ...),
    ],
)
def test_what_is_no_fraction_or_decimal_is_refused(parts: Any) -> None:
    with pytest.raises(ValueError, match=r"fraction|tag"):
        plain_data.loads(plain_data.dumps(parts))


@pytest.mark.parametrize(
    "value", [math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1]
)
def test_floats_cross_to_the_last_bit(value: float) -> None:
    assert same(crossed(value), value)


@pytest.mark.parametrize("value", [0, -1, 10**300, -(10**300), 10**300 - 1, (1 << 14_000)])
def test_ints_of_any_size_cross(value: int) -> None:
    assert crossed(value) == value
    assert crossed(value << 1_000_000) == value << 1_000_000


class Colour(IntEnum):
    RED = 3


class Liar(str):
    def __str__(self) -> str:
        return "lie"

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "underneath"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Point(1, 2), (1, 2)),
        (Colour.RED, 3),
        (Liar("truth"), "truth"),
        ([Counter("a"), {Liar("b")}], [{"a": 1}, {"b"}]),
        (bytearray(b"ab"), b"ab"),
    ],
)
def test_an_instance_of_a_subclass_crosses_as_what_it_is_underneath(value: Any, underneath: Any) -> None:
    assert same(crossed(value), underneath)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def holding_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "value",
    [object(), len, int, lambda: 3, range(3), iter([]), {1: object()}, [{2}, print], holding_itself()],
)
def test_anything_else_does_not_cross(value: Any) -> None:
    with pytest.raises(plain_data.NotPlain):
        plain_data.dumps(value)


@pytest.mark.parametrize("value", [nested(60), ..., (lambda: 3).__code__, StopIteration, nested(3_000)])
def test_what_the_interpreter_would_write_and_is_not_plain_is_not_read(value: Any) -> None:
    with pytest.raises((ValueError, plain_data.NotPlain)):
        plain_data.loads(plain_data.dumps(value))


def test_too_much_does_not_cross() -> None:
    with pytest.raises(plain_data.NotPlain, match="bytes"):
        plain_data.build_frame(b"R", "x" * plain_data.FRAME_BYTES)


tagged = st.recursive(
    st.sampled_from(
        [b".", b"N", b"T", b"i\x01\0\0\0", b"g" + b"\0" * 8, b"l\xff\xff\xff\xff\x01\0", b"u\1\0\0\0a", b"0"]
    )
    | st.binary(max_size=12),
    lambda inner: st.tuples(
        st.sampled_from(b"[(<>{lsuiy"),
        st.integers(-3, 9) | st.integers(-(2**31), 2**31 - 1),
        st.lists(inner, max_size=6),
    ).map(lambda parts: bytes([parts[0]]) + parts[1].to_bytes(4, "little", signed=True) + b"".join(parts[2])),
    max_leaves=10,
)


@given(tagged | st.binary(max_size=200))
def test_whatever_a_program_sends_becomes_plain_data_or_an_error_that_is_expected(data: bytes) -> None:
    try:
        value = plain_data.loads(data)
    except (ValueError, plain_data.NotPlain):
        return
    assert same(crossed(value), value)


@given(plain, st.data())
def test_a_flipped_byte_is_plain_data_or_an_error_that_is_expected(value: Any, data: st.DataObject) -> None:
    whole = bytearray(plain_data.dumps(value))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        plain_data.loads(bytes(whole))
    except (ValueError, plain_data.NotPlain):
        return


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_a_value_error_or_the_end(data: bytes) -> None:
    try:
        found = plain_data.read_frame(io.BytesIO(data).read)
    except ValueError:
        return
    assert found is None or len(found[1]) == int.from_bytes(data[:4], "big")


@pytest.mark.parametrize("depth", [60, 5_000, 500_000])
def test_depth_without_end_is_refused(depth: int) -> None:
    with pytest.raises(plain_data.NotPlain, match="deep"):
        plain_data.loads(b"[\x01\0\0\0" * depth + b"N")
