"""What every world reads: the training examples of a run, and how many steps an example allows."""

import json
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example


def read_training_examples(path: Path) -> tuple[Example, ...]:
    """The examples in a `train.jsonl`."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return tuple(Example(row.pop("id"), row.pop("question"), row.pop("answer", ""), row) for row in rows)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}.") from error


def read_step_limit(example: Example, otherwise: int) -> int:
    """What an example's `read_step_limit` says."""
    allowed = example.meta.get("steps", otherwise)
    if not isinstance(allowed, int) or isinstance(allowed, bool) or allowed < 1:
        raise UserError(f"The example {example.id!r} allows {allowed!r} steps.")
    return allowed
