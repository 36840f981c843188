"""The agent's time: it is started, and where it ends by itself with budget left, it is told to go on.

Where its harness died it is started again, for the time that is left, and told how things stand.

Each round is a sandbox of its own with the same workspace and HOME: what an agent left running ends with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent2rl.core.agent import Agent, Brief
from agent2rl.core.sandbox import Enclosure, Exit, Mount, Sandbox
from agent2rl.grading.service import GradingService
from agent2rl.runner.agent_ending import classify_ending
from agent2rl.runner.agent_prompts import make_continue_prompt, make_resume_prompt
from agent2rl.runner.driver_session import DriverSession
from agent2rl.store.heartbeat import BEAT_SECONDS
from agent2rl.store.recorder import Recorder
from agent2rl.store.resume_state import AgentEnd

LEAST_SECONDS, LEAST_SHARE = 60.0, 0.05
"""Of the budget: with less of it left, nobody is told to go on."""
ANEW = "The agent could not go on from what it left when the harness died: it begins anew."
LATE = Exit("deadline", None, 0.0, "Its time was used up when the harness died.")


@dataclass(frozen=True)
class AgentLauncher:
    """How an agent is started, each time."""

    agent: Agent
    sandbox: Sandbox
    enclosure: Enclosure
    secrets: Mapping[str, str]
    driving: DriverSession

    def list_agent_mounts(self, brief: Brief) -> tuple[Mount, ...]:
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


def run_agent_rounds(
    start: AgentLauncher, brief: Brief, service: GradingService, recorder: Recorder, most: int
) -> AgentEnd:
    """Until the agent has used its budget, failed, or been told to go on `most` times."""
    past = recorder.past
    spent, rounds = past.used_seconds, past.rounds
    told = _make_resume_brief(brief, start.driving, service) if past.started else brief
    least = BEAT_SECONDS if past.started else 0.0
    while True:
        answered = start.driving.count_answered_requests()
        last = start(told, service.remaining_seconds()) if service.remaining_seconds() > least else LATE
        rounds, spent = rounds + 1, spent + last.wall_seconds
        idle = (
            start.driving.count_answered_requests() == answered
        )  # it did not even think, and would not the next time
        failed = last.reason != "exited" or last.code != 0
        if told.resumed and rounds == past.rounds + 1 and last.reason == "exited" and failed and idle:
            _record_round_end(last, None, recorder)
            recorder.record_event("warning", text=ANEW)
            told = replace(told, prompt=f"{brief.prompt}\n{told.prompt}", resumed=False)
            continue
        over = None
        if failed or rounds > most or idle or not _has_budget_to_continue(service):
            ended, reason = classify_ending(last, start.driving, recorder.paths.agent_log)
            over = AgentEnd(ending=ended, reason=reason, rounds=rounds, agent_seconds=spent)
        _record_round_end(last, over, recorder)
        if over:
            return over
        prompt = make_continue_prompt(
            service.remaining_seconds(), service.graded.baseline, service.find_best()
        )
        told = replace(told, prompt=prompt, resumed=True)
        recorder.record_entry("continued", round=rounds + 1, left_seconds=service.remaining_seconds())


def _make_resume_brief(brief: Brief, driving: DriverSession, service: GradingService) -> Brief:
    """For an agent that was there before; one that has not thought yet has nothing to go on from."""
    stands = make_resume_prompt(
        service.remaining_seconds(), service.graded.baseline, service.find_best(), service.list_submissions()
    )
    thought = driving.count_answered_requests() > 0
    return replace(
        brief,
        prompt=stands if thought else f"{brief.prompt}\n{stands}",
        resumed=thought,
        environment={**brief.environment, "RESUMED": "1"},
    )


def _has_budget_to_continue(service: GradingService) -> bool:
    least = min(LEAST_SECONDS, LEAST_SHARE * service.budget.wall_seconds)
    return service.can_take() and service.remaining_seconds() > least


def _record_round_end(ended: Exit, over: AgentEnd | None, recorder: Recorder) -> None:
    recorder.record_entry(
        "ended",
        reason=ended.reason,
        code=ended.code,
        detail=ended.detail,
        peak_memory_bytes=ended.peak_memory_bytes,
        over=over.model_dump() if over else None,
    )
