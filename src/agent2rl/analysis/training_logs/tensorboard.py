"""TensorBoard event files: TFRecords, each with an `Event` message. Only scalars are read.

    record   length (8 bytes), its checksum (4), the message, its checksum (4)
    Event    1 wall_time, 2 step, 5 summary { 1 value { 1 tag, 2 simple_value, 8 tensor } }
    tensor   1 dtype, 4 content, 5 float_val, 6 double_val

Checksums are not verified: a damaged message is skipped, or yields a wrong point.
"""

import struct
from collections.abc import Iterator

from agent2rl.analysis.training_logs.log_reading import (
    MOST_ROWS,
    LogReader,
    LogReading,
    LogRow,
    parse_number,
    parse_time,
)
from agent2rl.analysis.training_logs.metric_names import is_known
from agent2rl.analysis.training_logs.protobuf_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    MalformedMessage,
    as_signed,
    read_fields,
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


READER = LogReader("tensorboard", lambda name: "tfevents." in name.rpartition("/")[2], read_event_file)
