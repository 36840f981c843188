"""The agent's time: it is started, and where it ends by itself with budget left, it is told to go on.

Each round is a sandbox of its own with the same workspace and HOME: what an agent left running ends with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent2rl.core.agent import Agent, Brief
from agent2rl.core.sandbox import Enclosure, Exit, Mount, Sandbox
from agent2rl.grading.service import Service
from agent2rl.runner.brief import go_on
from agent2rl.runner.driving import Driving
from agent2rl.store.recorder import Recorder

LEAST_SECONDS, LEAST_SHARE = 60.0, 0.05
"""Of the budget: with less of it left, nobody is told to go on."""


@dataclass(frozen=True)
class Start:
    """How an agent is started, each time."""

    agent: Agent
    sandbox: Sandbox
    enclosure: Enclosure
    secrets: Mapping[str, str]
    driving: Driving

    def brings(self, brief: Brief) -> tuple[Mount, ...]:
        """Files of the agent's own, that it sees in the workspace and that do not lie there."""
        return tuple(mount for mount in self.agent.command(brief).mounts if not mount.target.startswith("/"))

    def __call__(self, brief: Brief, seconds: float) -> Exit:
        command = self.agent.command(brief)
        command = replace(
            command,
            environment={**command.environment, **self.secrets},
            mounts=(*command.mounts, *self.driving.mounts),
        )
        return self.sandbox.run(command, replace(self.enclosure, wall_seconds=seconds), self.driving.over)


@dataclass(frozen=True)
class Ended:
    """How the last round ended, and the time of all together."""

    last: Exit
    rounds: int
    wall_seconds: float


def play(start: Start, brief: Brief, service: Service, recorder: Recorder, most: int) -> Ended:
    """Until the agent has used its budget, failed, or been told to go on `most` times."""
    spent, rounds = 0.0, 0
    while True:
        answered = start.driving.answered()
        last = start(brief, service.remaining())
        rounds, spent = rounds + 1, spent + last.wall_seconds
        _record(last, recorder)
        idle = start.driving.answered() == answered  # it did not even think, and would not the next time
        if last.reason != "exited" or last.code != 0 or rounds > most or idle or not _worth_it(service):
            return Ended(last, rounds, spent)
        prompt = go_on(service.remaining(), service.graded.baseline, service.best())
        brief = replace(brief, prompt=prompt, resumed=True)
        recorder.entry("continued", round=rounds + 1, left_seconds=service.remaining())


def _worth_it(service: Service) -> bool:
    least = min(LEAST_SECONDS, LEAST_SHARE * service.budget.wall_seconds)
    return service.can_take() and service.remaining() > least


def _record(ended: Exit, recorder: Recorder) -> None:
    peak = ended.peak_memory_bytes
    recorder.entry("ended", reason=ended.reason, code=ended.code, detail=ended.detail, peak_memory_bytes=peak)
