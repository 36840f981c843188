"""The agent's time: it is started, and where it ends by itself with budget left, it is told to go on.

Where its harness died it is started again, for the time that is left, and told how things stand.

Each round is a sandbox of its own with the same workspace and HOME: what an agent left running ends with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent2rl.core.agent import Agent, Brief
from agent2rl.core.sandbox import Enclosure, Exit, Mount, Sandbox
from agent2rl.grading.service import Service
from agent2rl.runner.brief import go_on, resumed
from agent2rl.runner.driving import Driving
from agent2rl.runner.endings import ending
from agent2rl.store.heart import BEAT_SECONDS
from agent2rl.store.past import Over
from agent2rl.store.recorder import Recorder

LEAST_SECONDS, LEAST_SHARE = 60.0, 0.05
"""Of the budget: with less of it left, nobody is told to go on."""
ANEW = "The agent could not go on from what it left when the harness died: it begins anew."
LATE = Exit("deadline", None, 0.0, "Its time was used up when the harness died.")


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


def play(start: Start, brief: Brief, service: Service, recorder: Recorder, most: int) -> Over:
    """Until the agent has used its budget, failed, or been told to go on `most` times."""
    past = recorder.past
    spent, rounds = past.used_seconds, past.rounds
    told = _resumed(brief, start.driving, service) if past.started else brief
    least = BEAT_SECONDS if past.started else 0.0
    while True:
        answered = start.driving.answered()
        last = start(told, service.remaining()) if service.remaining() > least else LATE
        rounds, spent = rounds + 1, spent + last.wall_seconds
        idle = start.driving.answered() == answered  # it did not even think, and would not the next time
        failed = last.reason != "exited" or last.code != 0
        if told.resumed and rounds == past.rounds + 1 and last.reason == "exited" and failed and idle:
            _record(last, None, recorder)
            recorder.event("warning", text=ANEW)
            told = replace(told, prompt=f"{brief.prompt}\n{told.prompt}", resumed=False)
            continue
        over = None
        if failed or rounds > most or idle or not _worth_it(service):
            ended, reason = ending(last, start.driving, recorder.paths.agent_log)
            over = Over(ending=ended, reason=reason, rounds=rounds, agent_seconds=spent)
        _record(last, over, recorder)
        if over:
            return over
        prompt = go_on(service.remaining(), service.graded.baseline, service.best())
        told = replace(told, prompt=prompt, resumed=True)
        recorder.entry("continued", round=rounds + 1, left_seconds=service.remaining())


def _resumed(brief: Brief, driving: Driving, service: Service) -> Brief:
    """For an agent that was there before; one that has not thought yet has nothing to go on from."""
    stands = resumed(service.remaining(), service.graded.baseline, service.best(), service.submissions())
    thought = driving.answered() > 0
    return replace(
        brief,
        prompt=stands if thought else f"{brief.prompt}\n{stands}",
        resumed=thought,
        environment={**brief.environment, "RESUMED": "1"},
    )


def _worth_it(service: Service) -> bool:
    least = min(LEAST_SECONDS, LEAST_SHARE * service.budget.wall_seconds)
    return service.can_take() and service.remaining() > least


def _record(ended: Exit, over: Over | None, recorder: Recorder) -> None:
    recorder.entry(
        "ended",
        reason=ended.reason,
        code=ended.code,
        detail=ended.detail,
        peak_memory_bytes=ended.peak_memory_bytes,
        over=over.model_dump() if over else None,
    )
