"""The agent's time: it is started, told to go on while budget remains, its ending is classified, and what it
says of its own work is saved (never trusted).

Where its harness died it is started again, for the time that is left, and told how things stand.

Each round is a sandbox of its own with the same workspace and HOME: what an agent left running ends with it.

Its log, its transcript, its notes of attempts; its tool calls go onto the timeline, too. What cannot be read
costs that account, not the run's result.
"""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.agent import Agent, Brief, DrivenAgent
from agent2rl.core.events import ClaimedToolCall
from agent2rl.core.records import Ending
from agent2rl.core.sandbox import Enclosure, Exit, Mount, Sandbox
from agent2rl.core.self_reports import AttemptClaim, AttemptClaims, Transcript
from agent2rl.grading.service import GradingService
from agent2rl.record.crash_recovery import AgentEnd
from agent2rl.record.heartbeat import BEAT_SECONDS
from agent2rl.record.recorder import Recorder
from agent2rl.record.untrusted_files import read_untrusted_file, sanitize_line
from agent2rl.run.driver_session import DriverSession
from agent2rl.run.workspace import REPORTS, make_continue_prompt, make_resume_prompt

# Why an agent's time is over: what it did, what became of it, or who is to blame.

ENDINGS: dict[str, Ending] = {
    "deadline": "deadline",
    "stopped": "interrupted",
    "memory": "out-of-memory",
    "processes": "too-many-processes",
    "disk": "disk-full",
}
LAST_WORDS = 4000


def classify_ending(last: Exit, driving: DriverSession, log: Path) -> tuple[Ending, str]:
    """Of the last time that it was started, and the reason in words."""
    blame = driving.find_driver_failure()
    gave_up = last.reason in ("exited", "stopped") and last.code != 0
    in_vain = last.reason == "deadline" and not driving.count_answered_requests()
    if blame and (gave_up or in_vain):
        return blame[0], blame[1] + _read_last_log_line(log)
    if last.reason == "exited" and last.code != 0:
        said = f"The agent ended with exit code {last.code}; agent.log says more.{_read_last_log_line(log)}"
        return "agent-failed", said
    if last.reason == "exited":
        return "completed", ""
    return ENDINGS[last.reason], last.detail


def _read_last_log_line(log: Path) -> str:
    """Why an agent failed stands in its log, most likely at the end."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_WORDS))
        lines = file.read().decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f" Its last line: {said[-1][:300]}" if said else ""


# The agent's time: it is started, and where it ends by itself with budget left, it is told to go on.

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


# What the agent itself says of its work, kept beside the record before its HOME goes. None of it is
# trusted.

CLAIMS_FILE = f"{REPORTS}/summary.jsonl"
MOST_CLAIM_BYTES = 4 << 20
MOST_CLAIMS = 1000
LONGEST_NAME, LONGEST_CALL = 200, 500
"""Characters of a tool call on the timeline; the transcript has all of it."""


def save_self_reports(agent: Agent, home: Path, recorder: Recorder) -> None:
    paths = recorder.paths
    try:
        recorder.record_account(paths.agent_log)
        recorder.record_account(paths.claims, read_claims(paths.workspace))
        if isinstance(agent, DrivenAgent):
            transcript = agent.transcript(paths.agent_log, home)
            recorder.record_account(paths.transcript, transcript)
            _record_tool_calls(transcript, recorder)
    except Exception:
        recorder.record_event("fault", where="the agent's own accounts", trace=traceback.format_exc())


def _record_tool_calls(transcript: Transcript, recorder: Recorder) -> None:
    """With the time that the agent gives; on the timeline they come after all else that it did.

    Those that a harness noted before it died are not noted again.
    """
    calls = []
    for step in transcript.steps:
        failed = {seen.call for seen in step.observations if seen.failed}
        for call in step.calls:
            name, shown = sanitize_line(call.name, LONGEST_NAME), sanitize_line(call.shown, LONGEST_CALL)
            calls.append(ClaimedToolCall(at=step.at, name=name, shown=shown, failed=call.id in failed))
    for called in calls[recorder.past.events.get("tool", 0) :]:
        recorder.record_event("tool", **called.model_dump())


def read_claims(workspace: Path) -> AttemptClaims:
    """The agent's notes, as far as they have the form that it was asked for."""
    lines = (read_untrusted_file(workspace, CLAIMS_FILE, MOST_CLAIM_BYTES) or b"").splitlines()
    lines = [line for line in lines if line.strip()]
    found = [claim for line in lines[:MOST_CLAIMS] if (claim := _parse_claim(line))]
    return AttemptClaims(claims=tuple(found), unread=len(lines) - len(found))


def _parse_claim(line: bytes) -> AttemptClaim | None:
    try:
        return AttemptClaim.model_validate_json(line)
    except ValidationError:
        return None
