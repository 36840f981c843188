"""The training questions of a run as a world: `train.jsonl` asks them, `corpus/` is what is searched.

data/train.jsonl                 {"id": …, "question": …, "answer": …, "answer_type": …, "steps": …} a line
data/corpus/documents.jsonl      {"id": …, "title": …, "text": …} a line
"""

import json
from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.search.local import read_corpus
from agent2rl.environments.search.research import Research
from agent2rl.environments.search.tools import TOOLS

FOLDER = "corpus"


def open_world(data: Path) -> World:
    corpus = read_corpus(data / FOLDER)
    games = _questions(data / "train.jsonl")
    return World(games, environment=lambda: Research(lambda _: corpus), tools=TOOLS)


def _questions(path: Path) -> tuple[Example, ...]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return tuple(Example(row.pop("id"), row.pop("question"), row.pop("answer"), row) for row in rows)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}.") from error
