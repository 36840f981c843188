"""The training games of a run as a world: `train.jsonl` names them, `games/` holds them.

data/train.jsonl                          {"id": …, "question": …, "task_type": …, "steps": …} a line
data/games/<task>/<trial>/game.tw-pddl    the games, in the official layout
"""

from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.environments.alfworld.household import Household, shelf
from agent2rl.environments.alfworld.tools import TOOLS
from agent2rl.environments.examples import training

try:
    from agent2rl.environments.alfworld.expert import Expert
except ImportError:  # the folder is hidden in a run without an expert
    Expert = None  # type: ignore[assignment, misc]

GAMES = "games"


def open_world(data: Path) -> World:
    find = shelf(data / GAMES)
    games = training(data / "train.jsonl")
    return World(games, environment=lambda: Household(find), expert=Expert, tools=TOOLS)
