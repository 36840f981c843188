"""ALFWorld: household games in text, played from their official files without TextWorld or a planner.

    game = AlfworldGame.load(Path("json_2.1.1/valid_seen/…/game.tw-pddl"))
    episode = AlfworldEpisode(game)
    print(episode.observation)
    print(episode.step("go to cabinet 1"), episode.won, episode.commands)

`AlfworldGame` is read once and shared; `AlfworldEpisode` is one episode, a few kilobytes;
`AlfworldEnvironment` wraps both as a `core.environment.Environment`. Texts, admissible commands and wins are
those of TextWorld 1.7.0 with alfworld 0.4.2. Not covered: its experts, its shuffled object numbers
(`domain_randomization`), its pictures.
"""

from agent2rl.core.environment import OpenWorld
from agent2rl.environments.alfworld.environment import AlfworldEnvironment, make_game_finder, open_world
from agent2rl.environments.alfworld.episode import NOTHING, AlfworldEpisode
from agent2rl.environments.alfworld.game import AlfworldGame

__all__ = ["NOTHING", "WORLD", "AlfworldEnvironment", "AlfworldEpisode", "AlfworldGame", "make_game_finder"]

WORLD: OpenWorld = open_world
