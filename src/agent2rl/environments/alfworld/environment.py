"""The ALFWorld environment, and a run's training games as a world with tools and an expert.

    data/train.jsonl                          {"id": …, "question": …, "task_type": …, "steps": …} per line
    data/games/<task>/<trial>/game.tw-pddl    the games, in the official layout

An action `think: …` is answered "OK.", changes nothing and costs a step, as in ReAct's evaluation. Models
read the docstrings of the tools. Not covered: prompts, and parsing the action out of a model's reply.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.alfworld.episode import NOTHING, AlfworldEpisode
from agent2rl.environments.alfworld.game import AlfworldGame
from agent2rl.environments.examples import TRAINING_HINT, read_step_limit, read_training_examples

GAME_FILE = "game.tw-pddl"
THOUGHT = "think:"
STEPS = 50
"""Default step limit of an episode; thoughts and invalid actions count. An example's `steps` overrides it."""

Find = Callable[[Example], AlfworldGame]
"""Returns the game of an example."""


def read_carried_game(example: Example) -> AlfworldGame:
    """Return the game in an example's `game`, where evaluation files have it."""
    data = example.meta.get("game")
    if not isinstance(data, dict):
        raise UserError(f"Example {example.id!r} has no game.", TRAINING_HINT)
    return AlfworldGame.from_data(data, example.id)


def make_game_finder(folder: Path, cache_size: int = 4096) -> Find:
    """Return a function that loads the game with an example's id (`<task>/<trial>`) from a folder, cached."""

    @lru_cache(maxsize=cache_size)
    def load(name: str) -> AlfworldGame:
        return AlfworldGame.load(folder / name / GAME_FILE)

    return lambda example: load(example.id)


@dataclass
class AlfworldEnvironment:
    """Play ALFWorld games. The step that wins has reward 1. Steps after the end change nothing."""

    find: Find = read_carried_game
    play: AlfworldEpisode | None = field(default=None, init=False)
    steps_taken: int = field(default=0, init=False)
    limit: int = field(default=STEPS, init=False)

    def reset(self, example: Example) -> EnvironmentStep:
        self.play, self.steps_taken, self.limit = (
            AlfworldEpisode(self.find(example)),
            0,
            read_step_limit(example, STEPS),
        )
        return self._make_step(self.play.observation)

    def step(self, action: str) -> EnvironmentStep:
        if self.play is None:
            raise RuntimeError("Call reset() before step().")
        if self.play.won or self.steps_taken >= self.limit:
            return self._make_step(NOTHING)
        self.steps_taken += 1
        if action.lstrip().startswith(THOUGHT):
            return self._make_step("OK.", invalid=False)
        observation = self.play.step(action)
        return self._make_step(observation, float(self.play.won), invalid=observation == NOTHING)

    def commands(self) -> tuple[str, ...]:
        return tuple(self.play.commands) if self.play else ()

    def close(self) -> None:
        self.play = None

    def _make_step(
        self, observation: str, reward: float = 0.0, invalid: bool | None = None
    ) -> EnvironmentStep:
        won = self.play is not None and self.play.won
        cut = not won and self.steps_taken >= self.limit
        return EnvironmentStep(observation, reward, done=won or cut, won=won, cut=cut, invalid=invalid)


# The commands as functions, for models that call tools. The model reads these docstrings. Slicing is left
# out, because no task needs it.


def go_to(place: str) -> str:
    """Go to a place.

    Args:
        place: Its name and number, such as "cabinet 1".
    """
    return f"go to {place}"


def open_place(place: str) -> str:
    """Open a place that is closed, and see what is in it.

    Args:
        place: Its name and number, such as "fridge 1".
    """
    return f"open {place}"


def close_place(place: str) -> str:
    """Close a place.

    Args:
        place: Its name and number, such as "fridge 1".
    """
    return f"close {place}"


def take(thing: str, place: str) -> str:
    """Take a thing. You can hold one only.

    Args:
        thing: Its name and number, such as "mug 2".
        place: Where it is, such as "shelf 1".
    """
    return f"take {thing} from {place}"


def put(thing: str, place: str) -> str:
    """Put down the thing that you hold.

    Args:
        thing: Its name and number, such as "mug 2".
        place: Where to put it, such as "shelf 1".
    """
    return f"move {thing} to {place}"


def clean(thing: str, place: str) -> str:
    """Clean the thing that you hold.

    Args:
        thing: Its name and number, such as "mug 2".
        place: What to clean it with, such as "sinkbasin 1".
    """
    return f"clean {thing} with {place}"


def heat(thing: str, place: str) -> str:
    """Heat the thing that you hold.

    Args:
        thing: Its name and number, such as "mug 2".
        place: What to heat it with, such as "microwave 1".
    """
    return f"heat {thing} with {place}"


def cool(thing: str, place: str) -> str:
    """Cool the thing that you hold.

    Args:
        thing: Its name and number, such as "mug 2".
        place: What to cool it with, such as "fridge 1".
    """
    return f"cool {thing} with {place}"


def use(thing: str) -> str:
    """Turn on a lamp.

    Args:
        thing: Its name and number, such as "desklamp 1".
    """
    return f"use {thing}"


def examine(name: str) -> str:
    """Look closely at a place, or at the thing that you hold.

    Args:
        name: Its name and number, such as "drawer 3".
    """
    return f"examine {name}"


def look() -> str:
    """Look around where you are."""
    return "look"


def inventory() -> str:
    """See what you hold."""
    return "inventory"


TOOLS = (go_to, open_place, close_place, take, put, clean, heat, cool, use, examine, look, inventory)


# A run's training games as a world: `train.jsonl` names them, `games/` has their files

try:
    from agent2rl.environments.alfworld.expert import AlfworldExpert
except (ImportError, PermissionError):  # the folder is hidden in a run without an expert
    AlfworldExpert = None  # type: ignore[assignment, misc]

GAMES = "games"


def open_world(data: Path) -> World:
    find = make_game_finder(data / GAMES)
    games = read_training_examples(data / "train.jsonl")
    return World(
        games,
        environment=lambda: AlfworldEnvironment(find),
        expert=AlfworldExpert,
        tools=TOOLS,
        replayable=True,
    )
