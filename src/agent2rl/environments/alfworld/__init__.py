"""ALFWorld: household games in text, played from their official files without TextWorld or a planner.

    game = Game.load(Path("json_2.1.1/valid_seen/…/game.tw-pddl"))
    play = Play(game)
    print(play.observation)
    print(play.step("go to cabinet 1"), play.won, play.commands)

`Game` is read once and shared; `Play` is one episode, a few kilobytes; `Household` is both of them behind
`core.environment.Environment`. Texts, admissible commands and victories are those of TextWorld 1.7.0 with
alfworld 0.4.2. Not covered: its experts, its shuffled object numbers (`domain_randomization`), its pictures.
"""

from agent2rl.core.environment import OpenWorld
from agent2rl.environments.alfworld.game import Game
from agent2rl.environments.alfworld.household import Household, shelf
from agent2rl.environments.alfworld.play import NOTHING, Play
from agent2rl.environments.alfworld.world import open_world

__all__ = ["NOTHING", "WORLD", "Game", "Household", "Play", "shelf"]

WORLD: OpenWorld = open_world
