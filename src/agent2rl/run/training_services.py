"""Serve what the agent may train with besides its data: the task's world and an optional training judge."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from agent2rl import registry
from agent2rl.core.agent import Brief
from agent2rl.core.grading_records import JudgeUsage
from agent2rl.core.records import ExpertHelp, RunSpec
from agent2rl.core.sandbox import ServiceSocket
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
from agent2rl.training.demonstrations import DEMONSTRATIONS_FILE

# The task's world: the server for the agent and its section of the instructions.

CONNECTIONS = openenv.MAX_SESSIONS + 64
EXPERT = """\
If `world.expert` is not None, an expert plays any training game.
`agent2rl.environments.adapters.play_expert_episodes(8, world=world)` returns episodes like those of
`rollout`."""
DEMONSTRATIONS = """\
`data/{file}` has {count:,} training games that an expert won, one JSON object a line: `game`, `kind`,
`won` and `turns`, a list of `observation` and `action`. There are no others: this run has no expert.
`agent2rl.training.demonstrations.read_demonstrations` reads the file, and
`agent2rl.training.conversations.encode_demonstrations` turns its games into training sequences."""


@contextmanager
def serve_world(
    task: Task, paths: RunPaths, assets: Assets, service: GradingService
) -> Iterator[tuple[ServiceSocket, ...]]:
    """Serve the run's training games. Yield no service sockets if the task has no world."""
    if task.world is None:
        yield ()
        return
    world = registry.find_world(task.world)(_link_world_data(paths, assets, service.setup.child.proxy_socket))
    service.meter.replay_in(world, service.record_fault)
    app = openenv.application(world, task.id, service.meter, service.record_fault)
    with serve_on_socket(app, connections=CONNECTIONS, message_bytes=openenv.BODY_BYTES) as socket:
        yield (ServiceSocket("ENVIRONMENT_URL", socket),)


def _link_world_data(paths: RunPaths, assets: Assets, socket: Path | None) -> Path:
    """Link the data directory as the agent sees it, with the folders that its sandbox mounts there.

    Add the grading proxy's socket, which the agent never sees.
    """
    data, linked = paths.workspace / "data", paths.scratch / "world"
    linked.mkdir(parents=True)
    mounted = {name: folder for name, folder in assets.folders.items() if isinstance(folder, Path)}
    for name, source in ({path.name: path for path in data.iterdir()} | mounted).items():
        (linked / name).symlink_to(source.resolve())
    if socket:
        (linked / grading_proxy_client.MOUNT_NAME).symlink_to(socket.parent)
    return linked


def add_rollout_report_key(task: Task, brief: Brief, service: GradingService) -> Brief:
    """Add the key with which the agent's processes report their rollouts."""
    if task.world is None:
        return brief
    return replace(brief, environment={**brief.environment, "ROLLOUT_KEY": service.meter.key})


def render_world_instructions(task: Task, spec: RunSpec) -> str:
    """Return the section about the world, or an empty string if the task has none."""
    if task.world is None:
        return ""
    max_steps = spec.budget.environment_steps
    limit = "as many steps as you like"
    if max_steps is not None:
        limit = f"at most {max_steps} steps in total, in your own processes and on the server"
    text = Path(__file__).with_name("world.md").read_text(encoding="utf-8")
    return "\n" + Template(text).substitute(limit=limit, expert=_describe_expert(spec.expert))


def _describe_expert(level: ExpertHelp) -> str:
    if level == "none":
        return "There is no expert and there are no demonstrations."
    if level == "full":
        return EXPERT
    return DEMONSTRATIONS.format(count=level, file=DEMONSTRATIONS_FILE)


# The training judge, if the user offers one: its server and its section of the instructions.

VARIABLE = "JUDGE_URL"
INSTRUCTIONS = f"""
## A judge to train with

`${VARIABLE}` is an OpenAI-compatible endpoint with one model, `{MODEL}`:
`POST ${VARIABLE}/v1/chat/completions`. It is not the judge that scores you. You cannot query that one.
This one answers up to {{questions:,}} questions. They are counted and recorded.
"""


@dataclass(frozen=True)
class TrainingJudgeAccess:
    """The service sockets to the training judge and its usage; empty if none is offered."""

    sockets: tuple[ServiceSocket, ...] = ()
    read_usage: Callable[[], JudgeUsage | None] = lambda: None


@contextmanager
def serve_training_judge(
    spec: RunSpec, settings: Settings, recorder: Recorder
) -> Iterator[TrainingJudgeAccess]:
    if spec.train_judge is None:
        yield TrainingJudgeAccess()
        return
    with judges.open_judge(spec.train_judge, settings) as judging:

        def record_usage(usage: JudgeUsage) -> None:
            recorder.record_event("train_judge", **usage.model_dump())

        judge = TrainingJudge(
            judging, spec.train_judge_questions, recorder.resume_state.train_judge, record_usage
        )
        try:
            with serve_on_socket(create_training_judge_app(judge)) as socket:
                yield TrainingJudgeAccess((ServiceSocket(VARIABLE, socket),), judge.read_usage)
        finally:
            recorder.record_entry("train_judge", **judge.read_usage().model_dump())


def render_judge_instructions(spec: RunSpec) -> str:
    return INSTRUCTIONS.format(questions=spec.train_judge_questions) if spec.train_judge else ""
