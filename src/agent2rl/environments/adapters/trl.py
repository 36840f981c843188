"""Use a world with TRL's GRPOTrainer: an `environment_factory` and the rows of a dataset.

    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(...),
        train_dataset=Dataset.from_list(rows(world, preface)),
        environment_factory=environment_factory(world),
    )

The model plays by calling tools, one per action of the world. The reward is that of the episode. Each row
names a game, so that the rollouts of a group play the same one. TRL passes exceptions of a tool on to the
model, so a used-up budget ends the training only at the next `reset`.

TRL itself is not imported here. Not covered: training the model to act in plain text, which is how it is
graded. For that, use `rollout` with a trainer of your own.
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
    """Return one row per game, with the preface as its prompt. TRL appends the first observation to it."""
    world = world or open_world()
    content = f"{preface}\n\n" if preface else ""
    return [{"prompt": [{"role": "user", "content": content}], "game": game.id} for game in world.games]


def environment_factory(world: World | None = None) -> type["TrlEnvironment"]:
    """Return a class that has the world's tools as methods."""
    world = world or open_world()
    methods = {tool.__name__: _make_tool_method(tool) for tool in world.tools or (act,)}
    return type("WorldPlayer", (TrlEnvironment,), {"_world": world, "_games": GameSelector(world), **methods})


class TrlEnvironment:
    """Play one rollout at a time. TRL takes every public method but `reset` and `get_reward` as a tool."""

    _world: ClassVar[World]
    _games: ClassVar[GameSelector]

    def __init__(self) -> None:
        self._slot = ROLLOUT_REPORTER.open_slot(self._world)

    def reset(self, game: str | None = None, **_: object) -> str:
        """Begin the game that a row names; other columns are ignored."""
        if game is None:
            raise UserError(
                "The dataset's rows have no `game`, so the rollouts of a group would play different games.",
                "Build them with agent2rl.environments.adapters.trl.rows().",
            )
        return self._slot.reset(self._games.find_game(game)).observation

    def get_reward(self) -> float:
        return self._slot.reward

    def _take_action(self, action: str) -> str:
        return OVER if self._slot.over else self._slot.step(action).observation


def act(action: str) -> str:
    """Act in the world.

    Args:
        action: What to do, in words.
    """
    return action


def _make_tool_method(tool: Callable[..., str]) -> Callable[..., str]:
    """Turn a tool into a method that takes its action, with the tool's signature and docstring."""

    @functools.wraps(tool)
    def method(self: TrlEnvironment, *arguments: Any, **named: Any) -> str:
        return self._take_action(tool(*arguments, **named))

    signature = inspect.signature(tool)
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(parameters=[self_parameter, *signature.parameters.values()])  # type: ignore[attr-defined]
    return method
