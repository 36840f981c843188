"""ALFWorld as an environment: one game after another, each with a limit of steps, as it is evaluated.

An action `think: …` is for the model itself: it is answered "OK.", changes nothing and costs a step, as in
ReAct's evaluation. Not covered: prompts, and finding the action in what a model wrote.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from agent2rl.core.environment import EnvironmentStep
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.alfworld.episode import NOTHING, AlfworldEpisode
from agent2rl.environments.alfworld.game import AlfworldGame
from agent2rl.environments.examples import read_step_limit

GAME_FILE = "game.tw-pddl"
THOUGHT = "think:"
STEPS = 50
"""In an episode, thoughts and nonsense included, unless an example's `read_step_limit` says otherwise."""

Find = Callable[[Example], AlfworldGame]
"""Where the game is that an example means."""


def read_carried_game(example: Example) -> AlfworldGame:
    """The game that an example carries in its `game`, as evaluation files have it."""
    data = example.meta.get("game")
    if not isinstance(data, dict):
        raise UserError(f"The example {example.id!r} carries no game.")
    return AlfworldGame.from_data(data, example.id)


def make_game_finder(folder: Path, kept: int = 4096) -> Find:
    """Finds the game that an example's id (`<task>/<trial>`) names in a folder; what it has read it keeps."""

    @lru_cache(maxsize=kept)
    def load(name: str) -> AlfworldGame:
        return AlfworldGame.load(folder / name / GAME_FILE)

    return lambda example: load(example.id)


@dataclass
class AlfworldEnvironment:
    """Reward is 1 for the step that wins. After the end nothing happens any more."""

    find: Find = read_carried_game
    play: AlfworldEpisode | None = field(default=None, init=False)
    taken: int = field(default=0, init=False)
    limit: int = field(default=STEPS, init=False)

    def reset(self, example: Example) -> EnvironmentStep:
        self.play, self.taken, self.limit = (
            AlfworldEpisode(self.find(example)),
            0,
            read_step_limit(example, STEPS),
        )
        return self._make_step(self.play.observation)

    def step(self, action: str) -> EnvironmentStep:
        if self.play is None:
            raise RuntimeError("An episode is begun with reset() before it can go on.")
        if self.play.won or self.taken >= self.limit:
            return self._make_step(NOTHING)
        self.taken += 1
        if action.lstrip().startswith(THOUGHT):
            return self._make_step("OK.")
        observation = self.play.step(action)
        return self._make_step(observation, reward=float(self.play.won))

    def commands(self) -> tuple[str, ...]:
        return tuple(self.play.commands) if self.play else ()

    def close(self) -> None:
        self.play = None

    def _make_step(self, observation: str, reward: float = 0.0) -> EnvironmentStep:
        won = self.play is not None and self.play.won
        cut = not won and self.taken >= self.limit
        return EnvironmentStep(observation, reward, done=won or cut, won=won, cut=cut)
