"""What worlds share: reading training examples and step limits, and what is small enough to replay."""

import json
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example


def read_training_examples(path: Path) -> tuple[Example, ...]:
    """Read the examples of a `train.jsonl`."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return tuple(Example(row.pop("id"), row.pop("question"), row.pop("answer", ""), row) for row in rows)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"Cannot read {path}: {type(error).__name__}: {error}.") from error


TRAINING_HINT = "To play training games, use open_world().environment of agent2rl.environments.adapters."
"""For environments of the grader, whose examples carry what training data has in files."""


def read_step_limit(example: Example, default: int) -> int:
    """Return the step limit in an example's `steps`, or the default."""
    limit = example.meta.get("steps", default)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise UserError(f"Example {example.id!r} allows {limit!r} steps.", "`steps` must be 1 or more.")
    return limit


MOST_REPLAYED_BYTES = 32 << 20
"""Limit of the files that a world searches in, if the harness is to replay its episodes: it loads them too,
into about ten times as much memory, and a search takes milliseconds."""


def is_small_enough_to_replay(folder: Path) -> bool:
    """Check whether a folder exists and its files are within the limit."""
    if not folder.is_dir():
        return False
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= MOST_REPLAYED_BYTES
