"""The training games of a run as a world: `train.jsonl` names them, `games/` holds them.

data/train.jsonl                          {"id": …, "question": …, "task_type": …, "steps": …} a line
data/games/<task>/<trial>/game.tw-pddl    the games, in the official layout
"""

import json
from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.alfworld.household import Household, shelf
from agent2rl.environments.alfworld.tools import TOOLS

try:
    from agent2rl.environments.alfworld.expert import Expert
except ImportError:  # the folder is hidden in a run without an expert
    Expert = None  # type: ignore[assignment, misc]

GAMES = "games"


def open_world(data: Path) -> World:
    find = shelf(data / GAMES)
    games = _games(data / "train.jsonl")
    return World(games, environment=lambda: Household(find), expert=Expert, tools=TOOLS)


def _games(path: Path) -> tuple[Example, ...]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return tuple(Example(row.pop("id"), row.pop("question"), row.pop("answer", ""), row) for row in rows)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}.") from error
