"""W&B runs on this machine, `run-*.wandb`: a LevelDB log of `Record` messages. Only the history is read.

    file      `:W&B`, magic number and version (7 bytes), then blocks of 32 KiB
    block     chunks: checksum (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last), data
    Record    2 history { 1 item { 1 key, 2 nested_key …, 5 integer, 6 number, 16 value_json }, 2 step }

Checksums are not verified: a damaged record is skipped.
"""

import json
import math
import struct
from collections.abc import Iterator

from agent2rl.analysis.training_logs.json_lines import make_row
from agent2rl.analysis.training_logs.log_reading import MOST_ROWS, LogReader, LogReading, LogRow
from agent2rl.analysis.training_logs.protobuf_wire import (
    BYTES,
    FIXED64,
    VARINT,
    MalformedMessage,
    as_signed,
    read_fields,
)

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


READER = LogReader("wandb", lambda name: name.endswith(".wandb"), read_wandb_file)
