"""Examples out of files: rows of questions and answers, and the fixed division of a test set.

Knows JSON lines and nothing of what a task makes of a row.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import JsonValue

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example

Row = tuple[str, dict[str, JsonValue]]
"""Where a row stands (`FILE, line N`, for messages), and the row."""


def read_rows(path: Path) -> Iterator[Row]:
    """Each row of the file; every one has a question and an answer."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read {path}: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _parse_row(line, place)


def _parse_row(line: str, place: str) -> dict[str, JsonValue]:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # an escaped lone surrogate could not be written again
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON: {error}.", "Each line is one JSON object.") from error
    if not isinstance(row, dict) or not {"question", "answer"} <= row.keys():
        raise UserError(f"{place} has no question and answer.", 'Each line is {"question": …, "answer": …}.')
    return row


def split_halves(examples: Sequence[Example], seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Two parts of equal size (the second may have one more), each in the given order.

    By the hash of seed and id, so that the division depends on no generator's implementation.
    """

    def rank(example: Example) -> str:
        return hashlib.sha256(f"{seed}:{example.id}".encode()).hexdigest()

    first = {example.id for example in sorted(examples, key=rank)[: len(examples) // 2]}
    return (
        tuple(example for example in examples if example.id in first),
        tuple(example for example in examples if example.id not in first),
    )
