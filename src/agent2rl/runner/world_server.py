"""The world of a task, for the agent to train in: what it is told of it, and the door to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from string import Template

from agent2rl import registry
from agent2rl.core.agent import Brief
from agent2rl.core.records import Budget
from agent2rl.core.sandbox import Door
from agent2rl.core.task import Task
from agent2rl.environments.adapters import openenv
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService
from agent2rl.net import grading_proxy_client
from agent2rl.runner.assets import Assets
from agent2rl.store.paths import RunPaths

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
