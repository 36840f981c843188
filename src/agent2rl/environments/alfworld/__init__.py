"""ALFWorld: household games in text, played from their official files without TextWorld or a planner.

    game = Game.load(Path("json_2.1.1/valid_seen/…/game.tw-pddl"))
    play = Play(game)
    print(play.observation)
    print(play.step("go to cabinet 1"), play.won, play.commands)

`AlfworldGame` is read once and shared; `AlfworldEpisode` is one episode, a few kilobytes;
`AlfworldEnvironment` is both of them behind `core.environment.Environment`. Texts, admissible commands and
victories are those of TextWorld 1.7.0 with alfworld 0.4.2. Not covered: its experts, its shuffled object
numbers (`domain_randomization`), its pictures.
"""

from agent2rl.core.environment import OpenWorld
from agent2rl.environments.alfworld.environment import AlfworldEnvironment, make_game_finder, open_world
from agent2rl.environments.alfworld.episode import NOTHING, AlfworldEpisode
from agent2rl.environments.alfworld.game import AlfworldGame

__all__ = ["NOTHING", "WORLD", "AlfworldEnvironment", "AlfworldEpisode", "AlfworldGame", "make_game_finder"]

WORLD: OpenWorld = open_world
