"""Training logs in protobuf: TensorBoard event files, and W&B runs on this machine.

TensorBoard event files are TFRecords, each with an `Event` message. Only scalars are read.

    record   length (8 bytes), its checksum (4), the message, its checksum (4)
    Event    1 wall_time, 2 step, 5 summary { 1 value { 1 tag, 2 simple_value, 8 tensor } }
    tensor   1 dtype, 4 content, 5 float_val, 6 double_val

Checksums are not verified: a damaged message is skipped, or yields a wrong point.
"""

import json
import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

from agent2rl.analysis.training_logs.json_logs import make_row
from agent2rl.analysis.training_logs.log_reading import (
    MOST_ROWS,
    LogReader,
    LogReading,
    LogRow,
    is_known,
    parse_number,
    parse_time,
)

HEADER, CHECKSUM = 12, 4
LONGEST_TAG = 200
FLOAT, DOUBLE = 1, 2
"""Types of a tensor."""


def read_event_file(content: bytes) -> LogReading:
    rows: list[LogRow] = []
    place = 0
    while place < len(content):
        if place + HEADER > len(content):
            return LogReading(tuple(rows), "its last record is incomplete")
        (size,) = struct.unpack_from("<Q", content, place)
        end = place + HEADER + size
        if end + CHECKSUM > len(content):
            problem = "its last record is incomplete" if rows else "it is not an event file"
            return LogReading(tuple(rows), problem)
        if row := _read_event(content[place + HEADER : end]):
            rows.append(row)
        if len(rows) >= MOST_ROWS:
            return LogReading(tuple(rows), f"only the first {MOST_ROWS:,} scalars were read")
        place = end + CHECKSUM
    return LogReading(tuple(rows))


def _read_event(message: bytes) -> LogRow | None:
    time, step = None, 0
    values: dict[str, float | None] = {}
    try:
        for field in read_fields(message):
            if field.number == 1 and field.kind == FIXED64:
                time = parse_time(struct.unpack("<d", field.data)[0])
            elif field.number == 2 and field.kind == VARINT:
                step = as_signed(field.value)
            elif field.number == 5 and field.kind == BYTES:
                values |= dict(_read_summary(field.data))
    except MalformedMessage:
        return None
    return LogRow(float(step), time, values) if values else None


def _read_summary(message: bytes) -> Iterator[tuple[str, float | None]]:
    for field in read_fields(message):
        if field.number == 1 and field.kind == BYTES and (scalar := _read_value(field.data)):
            yield scalar


def _read_value(message: bytes) -> tuple[str, float | None] | None:
    tag = ""
    number: float | None = None
    found = False
    for field in read_fields(message):
        if field.number == 1 and field.kind == BYTES:
            tag = field.data[:LONGEST_TAG].decode(errors="replace")
        elif field.number == 2 and field.kind == FIXED32:
            number, found = parse_number(struct.unpack("<f", field.data)[0]), True
        elif field.number == 8 and field.kind == BYTES and (scalar := _read_tensor(field.data)):
            number, found = parse_number(scalar[0]), True
    return (tag, number) if found and is_known(tag) else None


def _read_tensor(message: bytes) -> tuple[float] | None:
    """Return the number in a tensor of one element."""
    kind = 0
    for field in read_fields(message):
        if field.number == 1 and field.kind == VARINT:
            kind = field.value
        is_float = kind == FLOAT and field.number in (4, 5) and len(field.data) == 4
        is_double = kind == DOUBLE and field.number in (4, 6) and len(field.data) == 8
        if is_float or is_double:
            (number,) = struct.unpack("<f" if is_float else "<d", field.data)
            return (number,)
    return None


TENSORBOARD = LogReader("tensorboard", lambda name: "tfevents." in name.rpartition("/")[2], read_event_file)


# Read the fields of a protobuf message without its schema.
#
# https://protobuf.dev/programming-guides/encoding. Lengths are checked against the message, so a hostile file
# costs no more than its size.


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


# W&B runs on this machine, `run-*.wandb`: a LevelDB log of `Record` messages. Only the history is read.
#
#     file      `:W&B`, magic number and version (7 bytes), then blocks of 32 KiB
#     block     chunks: checksum (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last), data
#     Record    2 history { 1 item { 1 key, 2 nested_key …, 5 integer, 6 number, 16 value_json }, 2 step }
#
# Checksums are not verified: a damaged record is skipped.


MAGIC = b":W&B"
FILE_HEADER, BLOCK, CHUNK_HEADER = 7, 32 << 10, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
LONGEST_VALUE = 100
"""Longer values are no numbers."""
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How numbers that JSON lacks are written."""
AXIS = ("train/global_step", "global_step", "_step")
"""Steps, the trainer's own first. W&B's count calls of `log`."""


def read_wandb_file(content: bytes) -> LogReading:
    if not content.startswith(MAGIC):
        return LogReading(problem="it is not a W&B file")
    rows: list[LogRow] = []
    for record in _read_records(content):
        if row := _read_record(record):
            rows.append(row)
        if len(rows) >= MOST_ROWS:
            return LogReading(tuple(rows), f"only the first {MOST_ROWS:,} rows were read")
    return LogReading(tuple(rows))


def _read_records(content: bytes) -> Iterator[bytes]:
    place = FILE_HEADER
    parts: list[bytes] = []
    while place + CHUNK_HEADER <= len(content):
        left = BLOCK - place % BLOCK
        # LevelDB leaves the end of a block empty if no header fits into it.
        if left < CHUNK_HEADER:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        data = content[place + CHUNK_HEADER : place + CHUNK_HEADER + size]
        if kind not in (WHOLE, FIRST, MIDDLE, LAST):  # the rest of the block is empty
            place += left
            continue
        parts = [data] if kind in (WHOLE, FIRST) else parts
        if kind in (MIDDLE, LAST):
            parts.append(data)
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
            parts = []
        place += CHUNK_HEADER + size


def _read_record(message: bytes) -> LogRow | None:
    try:
        for field in read_fields(message):
            if field.number == 2 and field.kind == BYTES:
                return _read_history(field.data)
    except MalformedMessage:
        return None
    return None


def _read_history(message: bytes) -> LogRow | None:
    values: dict[str, object] = {}
    for field in read_fields(message):
        if field.number == 1 and field.kind == BYTES:
            key, value = _read_item(field.data)
            values[key] = value
        elif field.number == 2 and field.kind == BYTES:
            steps = [part.value for part in read_fields(field.data) if part.number == 1]
            values.setdefault("_step", as_signed(steps[0]) if steps else 0)
    step = next((values[name] for name in AXIS if name in values), None)
    return make_row({**values, "step": step})


def _read_item(message: bytes) -> tuple[str, object]:
    names: list[str] = []
    value: object = None
    for field in read_fields(message):
        if field.number in (1, 2) and field.kind == BYTES:
            names.append(field.data.decode(errors="replace"))
        elif field.number == 5 and field.kind == VARINT:
            value = as_signed(field.value)
        elif field.number == 6 and field.kind == FIXED64:
            (value,) = struct.unpack("<d", field.data)
        elif field.number == 16 and field.kind == BYTES and len(field.data) <= LONGEST_VALUE:
            value = _parse_json(field.data)
    return "/".join(names), value


def _parse_json(text: bytes) -> object:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return NOT_FINITE.get(value) if isinstance(value, str) else value


WANDB_OFFLINE = LogReader("wandb", lambda name: name.endswith(".wandb"), read_wandb_file)
