"""A world as an environment of verifiers (0.4, `verifiers.v1`): its training games as tasks.

    class StairsTaskset(WorldTaskset):
        FOLDER = Path(__file__).parent

A module that exports such a taskset and `WorldEnv` in `__all__` is an environment: `vf-eval NAME` plays it,
and `verifiers.v1.load_environment` loads it. `agent2rl export verifiers` writes one. FOLDER has `data/`, as
an agent's workspace has it, and `eval.py`.

The model reads what it reads in grading: the grader's prompt before the first observation, then an
observation after each of its replies. The grader's rule finds the action in a reply. The reward is that of
the episode's best step.
"""

import runpy
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import verifiers.v1 as vf

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import UserError
from agent2rl.environments.adapters.episodes import GameSelector, open_world


class WorldTasksetConfig(vf.TasksetConfig):
    """The taskset of a world has no options of its own."""


class WorldGameData(vf.TaskData):
    game: str
    """Id of the training game."""
    folder: str
    """Folder of the package, where the world is opened from."""


class WorldGame(vf.Task[WorldGameData]):
    """One training game."""


class WorldTaskset(vf.Taskset[WorldGame, WorldTasksetConfig]):
    FOLDER: ClassVar[Path]

    def load(self) -> Iterable[WorldGame]:
        for game in open_package_world(self.FOLDER).games:
            data = WorldGameData(id=game.id, name=game.id, prompt=None, game=game.id, folder=str(self.FOLDER))
            yield WorldGame(data, self.config.task)


class WorldEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    """The model that acts. Its harness only chats: the world is played in this process."""


class WorldEnv(vf.Env[WorldEnvConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        """Play one episode: each reply of the model is an action, and each observation a user turn."""
        folder = Path(task.data.folder)
        world, evaluator = open_package_world(folder), read_evaluator(folder)
        game = GameSelector(world).find_game(task.data.game)
        environment = world.environment()
        steps, reward = 0, 0.0
        try:
            step = environment.reset(game)
            first = evaluator.prompt.build_first_message(step.observation, True, evaluator.get_kind(game))
            message = "\n\n".join(part.content for part in first)
            async with agents.player.interaction(task) as interaction:
                while not step.done:
                    segment = await interaction.turn(message)
                    if segment.terminated:
                        break
                    step = environment.step(evaluator.action(segment.last_reply))
                    steps, reward, message = steps + 1, max(reward, step.reward), step.observation
            _record_episode(interaction.trace, step, steps, reward)
        finally:
            environment.close()


def _record_episode(trace: Any, step: EnvironmentStep, steps: int, reward: float) -> None:
    trace.record_reward("world_reward", reward)
    trace.record_metrics({"won": float(step.won), "steps": float(steps), **step.marks})
    if step.cut:
        trace.info["truncated"] = True


@cache
def open_package_world(folder: Path) -> World:
    """Open the world of a package once; its environments are independent."""
    return open_world(folder / "data")


@cache
def read_evaluator(folder: Path) -> Any:
    """Return the grader's evaluation: its prompts, and its rule for the action in a reply."""
    try:
        return runpy.run_path(str(folder / "eval.py"))["EVALUATOR"]
    except (OSError, KeyError) as error:
        raise UserError(f"Cannot read the evaluation in {folder / 'eval.py'}: {error}.") from error
