"""JSON lines: an object for each step, such as the progress of our own recipes.

An object needs a step and a known metric. Objects in it are read too, as `outer/inner`.
"""

import json
from collections.abc import Iterator, Mapping

from agent2rl.analysis.training_logs.log_reading import (
    MOST_ROWS,
    LogReader,
    LogReading,
    LogRow,
    parse_number,
    parse_time,
)
from agent2rl.analysis.training_logs.metric_names import is_known

STEPS = ("step", "global_step", "train/global_step", "_step", "training_step", "iteration", "iter", "update")
TIMES = ("time", "timestamp", "_timestamp", "wall_time")
STAGES = ("stage", "phase")
LONGEST_LINE = 64 << 10
DEEPEST = 3
MOST_VALUES = 500
"""Limit on values of an object."""


def read_json_lines(content: bytes) -> LogReading:
    rows: list[LogRow] = []
    for line in content.split(b"\n"):
        if row := _read_line(line):
            rows.append(row)
        if len(rows) >= MOST_ROWS:
            return LogReading(tuple(rows), f"only the first {MOST_ROWS:,} rows were read")
    return LogReading(tuple(rows))


def _read_line(line: bytes) -> LogRow | None:
    if not line.startswith(b"{") or len(line) > LONGEST_LINE:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return make_row(record) if isinstance(record, dict) else None


def make_row(record: Mapping[str, object]) -> LogRow | None:
    """Return the metrics of an object; None if it has no step or no known metric."""
    step = next((value for name in STEPS if (value := parse_number(record.get(name))) is not None), None)
    if step is None:
        return None
    values = dict(_list_values(record, "", 1))
    if not values:
        return None
    time = next((value for name in TIMES if (value := parse_time(record.get(name))) is not None), None)
    stage = next((text for name in STAGES if isinstance(text := record.get(name), str)), "")
    return LogRow(step, time, values, stage[:40])


def _list_values(record: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, float | None]]:
    for name, value in list(record.items())[:MOST_VALUES]:
        key = f"{prefix}{name}"
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _list_values(value, f"{key}/", depth + 1)
        elif isinstance(value, int | float) and not isinstance(value, bool) and is_known(key):
            yield key, parse_number(value)


READER = LogReader("json-lines", lambda name: name.endswith(".jsonl"), read_json_lines)
