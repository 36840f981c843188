"""A world as TRL's GRPOTrainer takes it: an `environment_factory` and the rows of a dataset.

    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(...),
        train_dataset=Dataset.from_list(rows(world, preface)),
        environment_factory=environment_factory(world),
    )

The model plays by calling tools, one for each action that the world names. The reward is the episode's. The
rows name games, so that the rollouts of a group play the same one. TRL hands what a tool raises to the
model, so a budget that is used up ends the training at the next `reset`.

TRL itself is not imported here. Not covered: training the model to act in plain text, which is how it is
graded; `rollout` with a trainer of your own does that.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.environments.adapters.episodes import GameSelector, open_world
from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER

OVER = "The episode is over."


def rows(world: World | None = None, preface: str = "") -> list[dict[str, Any]]:
    """A row for each game. TRL puts what the episode shows first after the prompt, which is the preface."""
    world = world or open_world()
    content = f"{preface}\n\n" if preface else ""
    return [{"prompt": [{"role": "user", "content": content}], "game": game.id} for game in world.games]


def environment_factory(world: World | None = None) -> type["TrlEnvironment"]:
    """A class whose methods are the world's tools."""
    world = world or open_world()
    methods = {tool.__name__: _make_tool_method(tool) for tool in world.tools or (act,)}
    return type("WorldPlayer", (TrlEnvironment,), {"_world": world, "_games": GameSelector(world), **methods})


class TrlEnvironment:
    """One rollout at a time. Whatever has no underscore, `reset` and `get_reward` apart, is a tool to TRL."""

    _world: ClassVar[World]
    _games: ClassVar[GameSelector]

    def __init__(self) -> None:
        self._seat = ROLLOUT_REPORTER.open_slot(self._world)

    def reset(self, game: str | None = None, **_: object) -> str:
        """Begin the game that a row names; the row's other columns are not for us."""
        if game is None:
            raise UserError(
                "The dataset's rows name no `game`, so the rollouts of a group would play different ones.",
                "Make them with agent2rl.environments.adapters.trl.rows().",
            )
        return self._seat.reset(self._games.find_game(game)).observation

    def get_reward(self) -> float:
        return self._seat.reward

    def _take_action(self, action: str) -> str:
        return OVER if self._seat.over else self._seat.step(action).observation


def act(action: str) -> str:
    """Act in the world.

    Args:
        action: What to do, in words.
    """
    return action


def _make_tool_method(tool: Callable[..., str]) -> Callable[..., str]:
    """A method that does what a tool says, and looks like it to whoever reads signatures."""

    @functools.wraps(tool)
    def method(self: TrlEnvironment, *arguments: Any, **named: Any) -> str:
        return self._take_action(tool(*arguments, **named))

    own = inspect.signature(tool)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = own.replace(parameters=[this, *own.parameters.values()])  # type: ignore[attr-defined]
    return method
