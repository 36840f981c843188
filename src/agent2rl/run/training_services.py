"""Serves what the agent may train with beside its data: the task's world and, where the user offers one, a
training judge.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from agent2rl import registry
from agent2rl.core.agent import Brief
from agent2rl.core.grading_records import JudgeUsage
from agent2rl.core.records import Budget, RunSpec
from agent2rl.core.sandbox import Door
from agent2rl.core.task import Task
from agent2rl.environments.adapters import openenv
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService
from agent2rl.grading.training_judge import MODEL, TrainingJudge, create_training_judge_app
from agent2rl.net import grading_proxy_client
from agent2rl.record.paths import RunPaths
from agent2rl.record.recorder import Recorder
from agent2rl.run import judges
from agent2rl.run.assets import Assets
from agent2rl.run.settings import Settings

# The world of a task, for the agent to train in: what it is told of it, and the door to it.

CONNECTIONS = openenv.MAX_SESSIONS + 64


@contextmanager
def serve_world(
    task: Task, paths: RunPaths, assets: Assets, service: GradingService
) -> Iterator[tuple[Door, ...]]:
    """Serve the run's training games; no doors where the task has no world."""
    if task.world is None:
        yield ()
        return
    world = registry.find_world(task.world)(_link_world_data(paths, assets, service.graded.child.desk))
    app = openenv.application(world, task.id, service.meter, service.record_fault)
    with serve_on_socket(app, connections=CONNECTIONS, message_bytes=openenv.BODY_BYTES) as socket:
        yield (Door("ENVIRONMENT_URL", socket),)


def _link_world_data(paths: RunPaths, assets: Assets, socket: Path | None) -> Path:
    """The data directory as the agent sees it: with the folders that its sandbox mounts there.

    And with the harness's own desk, which the agent never sees.
    """
    own, whole = paths.workspace / "data", paths.scratch / "world"
    whole.mkdir(parents=True)
    mounted = {name: folder for name, folder in assets.folders.items() if isinstance(folder, Path)}
    for name, source in ({path.name: path for path in own.iterdir()} | mounted).items():
        (whole / name).symlink_to(source.resolve())
    if socket:
        (whole / grading_proxy_client.MOUNT_NAME).symlink_to(socket.parent)
    return whole


def add_rollout_key(task: Task, brief: Brief, service: GradingService) -> Brief:
    """With the key that the agent's own rollouts are reported with."""
    if task.world is None:
        return brief
    return replace(brief, environment={**brief.environment, "ROLLOUT_KEY": service.meter.key})


def render_world_instructions(task: Task, budget: Budget) -> str:
    """What the agent reads of its world; nothing where there is none."""
    if task.world is None:
        return ""
    most = budget.environment_steps
    limit = "as many steps as you like" if most is None else f"at most {most} steps, wherever you take them"
    text = Path(__file__).with_name("world.md").read_text(encoding="utf-8")
    return "\n" + Template(text).substitute(limit=limit)


# The judge that the agent may train with, where the user offers one: its door, and what is told of it.

VARIABLE = "JUDGE_URL"
TOLD = f"""
## A judge to train with

`${VARIABLE}` is an OpenAI-compatible endpoint with one model, `{MODEL}`:
`POST ${VARIABLE}/v1/chat/completions`. It is not the judge that scores you, which cannot be asked.
It answers {{questions:,}} questions, which are counted and go on record.
"""


@dataclass(frozen=True)
class TrainingJudgeAccess:
    """What there is of such a judge: nothing, where none is offered."""

    doors: tuple[Door, ...] = ()
    use: Callable[[], JudgeUsage | None] = lambda: None


@contextmanager
def serve_training_judge(
    spec: RunSpec, settings: Settings, recorder: Recorder
) -> Iterator[TrainingJudgeAccess]:
    if spec.train_judge is None:
        yield TrainingJudgeAccess()
        return
    with judges.open_judge(spec.train_judge, settings) as judging:

        def note(use: JudgeUsage) -> None:
            recorder.record_event("train_judge", **use.model_dump())

        teacher = TrainingJudge(judging, spec.train_judge_questions, recorder.past.train_judge, note)
        try:
            with serve_on_socket(create_training_judge_app(teacher)) as socket:
                yield TrainingJudgeAccess((Door(VARIABLE, socket),), teacher.read_usage)
        finally:
            recorder.record_entry("train_judge", **teacher.read_usage().model_dump())


def render_judge_instructions(spec: RunSpec) -> str:
    return TOLD.format(questions=spec.train_judge_questions) if spec.train_judge else ""
