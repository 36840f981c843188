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
from agent2rl.environments.faces import openenv
from agent2rl.grading.server import serve
from agent2rl.grading.service import Service

CONNECTIONS = openenv.MOST + 64


@contextmanager
def doors(task: Task, data: Path, service: Service) -> Iterator[tuple[Door, ...]]:
    """Serve the training games in the run's data directory; no doors where the task has no world."""
    if task.world is None:
        yield ()
        return
    world = registry.world(task.world)(data)
    app = openenv.application(world, task.id, service.meter, service.fault)
    with serve(app, connections=CONNECTIONS, message_bytes=openenv.BODY_BYTES) as socket:
        yield (Door("ENVIRONMENT_URL", socket),)


def told(task: Task, brief: Brief, service: Service) -> Brief:
    """With the key that the agent's own rollouts are reported with."""
    if task.world is None:
        return brief
    return replace(brief, environment={**brief.environment, "ROLLOUT_KEY": service.meter.key})


def instructions(task: Task, budget: Budget) -> str:
    """What the agent reads of its world; nothing where there is none."""
    if task.world is None:
        return ""
    most = budget.environment_steps
    limit = "as many steps as you like" if most is None else f"at most {most} steps, wherever you take them"
    text = Path(__file__).with_name("world.md").read_text(encoding="utf-8")
    return "\n" + Template(text).substitute(limit=limit)
