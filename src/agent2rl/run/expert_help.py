"""Give a run the stated amount of expert help: an expert, some of its games as files, or neither."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from agent2rl.core.environment import Environment, ExpertPolicy
from agent2rl.core.errors import UserError
from agent2rl.core.records import ExpertHelp
from agent2rl.core.task import Example, Splits, Task
from agent2rl.evaluators.episodes import Episodes
from agent2rl.run.task_data import open_loaded_world
from agent2rl.training.demonstrations import Demonstration, DemonstrationTurn


@dataclass(frozen=True)
class HelpedSplits:
    """What the agent gets."""

    splits: Splits
    demonstrations: tuple[Demonstration, ...] = ()


def choose_expert_help(task: Task, chosen: ExpertHelp | None) -> ExpertHelp:
    """Return the chosen level, or the task's own; raise UserError if the task has no expert."""
    if chosen is None:
        return task.default_expert
    if task.withhold is None:
        raise UserError(f"The task {task.id!r} has no expert.", "Leave out --expert.")
    return chosen


def apply_expert_help(task: Task, splits: Splits, level: ExpertHelp) -> HelpedSplits:
    """Withhold the expert unless the level is `full`, and record as many of its games as the level says."""
    if level == "full":
        return HelpedSplits(splits)
    if task.withhold is None:
        raise UserError(f"The task {task.id!r} has no expert.", "Leave out --expert.")
    shown = () if level == "none" else record_demonstrations(task, splits, level)
    return HelpedSplits(task.withhold(splits), shown)


def record_demonstrations(task: Task, splits: Splits, count: int) -> tuple[Demonstration, ...]:
    """Return `count` training games that the expert wins: always the same ones, and the first of any more."""
    with open_loaded_world(task, splits) as world:
        if world.expert is None:
            raise UserError(f"The task {task.id!r} has no expert.", "Leave out --expert.")
        environment = world.environment()
        played = (
            _play_expert_game(environment, world.expert(), game, _get_kind(task, game))
            for game in _order_games(world.games)
        )
        shown = tuple(islice((each for each in played if each.won), count))
        environment.close()
    if len(shown) < count:
        raise UserError(
            f"The expert of {task.id!r} wins {len(shown):,} training games, not {count:,}.",
            f"Use --expert {len(shown)}, or --expert full.",
        )
    return shown


def _order_games(games: tuple[Example, ...]) -> Iterator[Example]:
    """Yield the games in an order that mixes their kinds and depends on their ids alone."""
    yield from sorted(games, key=lambda game: hashlib.sha256(game.id.encode()).hexdigest())


def _play_expert_game(
    environment: Environment, expert: ExpertPolicy, game: Example, kind: str
) -> Demonstration:
    step = environment.reset(game)
    turns = []
    while not step.done:
        turn = DemonstrationTurn(observation=step.observation, action=expert.act(step.observation))
        turns.append(turn)
        step = environment.step(turn.action)
    return Demonstration(game=game.id, kind=kind, won=step.won, turns=tuple(turns))


def _get_kind(task: Task, game: Example) -> str:
    return task.evaluator.get_kind(game) if isinstance(task.evaluator, Episodes) else ""
