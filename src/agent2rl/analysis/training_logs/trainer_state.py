"""`trainer_state.json` of transformers and TRL: the log is in `log_history`."""

import json

from agent2rl.analysis.training_logs.json_lines import make_row
from agent2rl.analysis.training_logs.log_reading import MOST_ROWS, LogReader, LogReading

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


READER = LogReader("trainer-state", lambda name: name.endswith("trainer_state.json"), read_trainer_state)
