"""The training games of a run as a world: `train.jsonl` names them, `games/` holds them.

data/train.jsonl                          {"id": …, "question": …, "task_type": …, "steps": …} a line
data/games/<task>/<trial>/game.tw-pddl    the games, in the official layout
"""

from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.environments.alfworld.environment import AlfworldEnvironment, make_game_finder
from agent2rl.environments.alfworld.tools import TOOLS
from agent2rl.environments.examples import read_training_examples

try:
    from agent2rl.environments.alfworld.expert import AlfworldExpert
except ImportError:  # the folder is hidden in a run without an expert
    AlfworldExpert = None  # type: ignore[assignment, misc]

GAMES = "games"


def open_world(data: Path) -> World:
    find = make_game_finder(data / GAMES)
    games = read_training_examples(data / "train.jsonl")
    return World(games, environment=lambda: AlfworldEnvironment(find), expert=AlfworldExpert, tools=TOOLS)
