"""Training logs in JSON: JSON lines, and the `trainer_state.json` of transformers and TRL.

JSON lines have an object for each step, such as the progress of our own recipes. An object needs a step
and a known metric. Objects in it are read too, as `outer/inner`.
"""

import json
from collections.abc import Iterator, Mapping

from agent2rl.analysis.training_logs.log_reading import (
    MOST_ROWS,
    LogReader,
    LogReading,
    LogRow,
    is_known,
    parse_number,
    parse_time,
)

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


JSON_LINES = LogReader("json-lines", lambda name: name.endswith(".jsonl"), read_json_lines)


# `trainer_state.json` of transformers and TRL: the log is in `log_history`.


SUMMARY = "train_runtime"
"""An entry with this summarises the training."""


def read_trainer_state(content: bytes) -> LogReading:
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        return LogReading(problem="it is not valid JSON")
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        return LogReading(problem="it has no log_history")
    entries = [entry for entry in history[:MOST_ROWS] if isinstance(entry, dict) and SUMMARY not in entry]
    return LogReading(tuple(row for entry in entries if (row := make_row(entry))))


TRAINER_STATE = LogReader(
    "trainer-state", lambda name: name.endswith("trainer_state.json"), read_trainer_state
)
