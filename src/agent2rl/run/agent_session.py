"""Run the agent in rounds, classify how it ended, and save its own accounts of its work (never trusted).

An agent that exits with budget left is told to continue. After a crash of the harness, the agent is started
again for the remaining time, with a prompt that describes the state of the run.

Each round has its own sandbox with the same workspace and HOME, so background processes end with the round.

The agent's accounts are its log, its transcript and its notes on attempts. Its tool calls also go onto the
timeline. An account that cannot be read is lost, but the run's result is not.
"""

import logging
import re
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
from agent2rl.record.heartbeat import HEARTBEAT_SECONDS
from agent2rl.record.recorder import Recorder
from agent2rl.record.untrusted_files import read_untrusted_file, sanitize_line
from agent2rl.run.driver_session import DriverSession
from agent2rl.run.workspace import REPORTS, make_continue_prompt, make_resume_prompt

logger = logging.getLogger(__name__)

# Why the agent's time ended.

ENDINGS: dict[str, Ending] = {
    "deadline": "deadline",
    "stopped": "interrupted",
    "memory": "out-of-memory",
    "processes": "too-many-processes",
    "disk": "disk-full",
}
LAST_WORDS = 4000
LONGEST_QUOTE = 300
ERROR_LINE = re.compile("error|not found", re.IGNORECASE)
EXCEPTION_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Timeout)(?::\s.*)?$")
"""Begins the message of a Python exception, which may have more lines below it."""
NO_REQUEST = (
    "The agent exited with code 0, but it sent no request to its driver and submitted nothing. "
    "A start script that pipes its program into `tee` hides the program's exit code."
)


def classify_ending(last_exit: Exit, driver: DriverSession, log: Path, submitted: bool) -> tuple[Ending, str]:
    """Return the ending of the agent's last round and the reason as text.

    `submitted`: whether the agent has submitted anything.
    """
    driver_failure = driver.find_driver_failure()
    # An agent may survive failures of its driver. They ended it only if it gave up, or never got an
    # answer.
    gave_up = last_exit.reason in ("exited", "stopped") and last_exit.code != 0
    never_answered = last_exit.reason == "deadline" and not driver.count_answered_requests()
    if driver_failure and (gave_up or never_answered):
        return driver_failure[0], driver_failure[1] + _quote_log(log)
    if last_exit.reason == "exited" and last_exit.code != 0:
        reason = f"The agent failed with exit code {last_exit.code}. See agent.log.{_quote_log(log)}"
        return "agent-failed", reason
    if last_exit.reason == "exited" and driver.sent_no_request() and not submitted:
        return "failed", f"{NO_REQUEST} Its log is {log}.{_quote_log(log, ERROR_LINE)}"
    if last_exit.reason == "exited":
        return "completed", ""
    return ENDINGS[last_exit.reason], last_exit.detail


def _quote_log(log: Path, telling: re.Pattern[str] | None = None) -> str:
    """Return the line of the log that most likely says why the agent failed: the last exception, or the end.

    If lines near the end match `telling`, return the last of those instead of the end.
    """
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_WORDS))
        lines = file.read().decode(errors="replace").split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    for pattern in filter(None, (EXCEPTION_LINE, telling)):
        if matching := [line for line in lines if pattern.search(line)]:
            return f" One of its last lines: {_shorten_line(matching[-1])}"
    return f" Its last line: {_shorten_line(lines[-1])}" if lines else ""


def _shorten_line(line: str) -> str:
    if len(line) <= LONGEST_QUOTE:
        return line
    return f"{line[:LONGEST_QUOTE].rpartition(' ')[0] or line[:LONGEST_QUOTE]} …"


# Rounds: the agent is started, and told to continue if it exits with budget left.

LEAST_SECONDS, LEAST_SHARE = 60.0, 0.05
"""With less of the budget left, the agent is not told to continue."""
RESTART_WARNING = "The agent could not resume its session after the harness crashed. It starts a new one."
NO_TIME_LEFT = Exit("deadline", None, 0.0, "The agent's time was used up when the harness crashed.")


@dataclass(frozen=True)
class AgentLauncher:
    """Start the agent for one round."""

    agent: Agent
    sandbox: Sandbox
    enclosure: Enclosure
    secrets: Mapping[str, str]
    driver: DriverSession

    def list_agent_mounts(self, brief: Brief) -> tuple[Mount, ...]:
        """Return the agent's own files that are mounted into the workspace."""
        return tuple(mount for mount in self.agent.command(brief).mounts if not mount.target.startswith("/"))

    def __call__(self, brief: Brief, seconds: float) -> Exit:
        command = self.agent.command(brief)
        command = replace(
            command,
            environment={**command.environment, **self.secrets},
            mounts=(*command.mounts, *self.driver.mounts),
        )
        return self.sandbox.run(command, replace(self.enclosure, wall_seconds=seconds), self.driver.over)


def run_agent_rounds(
    launcher: AgentLauncher, brief: Brief, service: GradingService, recorder: Recorder, max_continues: int
) -> AgentEnd:
    """Run the agent until it has used its budget, failed, or continued `max_continues` times."""
    resume_state, driver = recorder.resume_state, launcher.driver
    agent_seconds, rounds = resume_state.used_seconds, resume_state.rounds
    round_brief = _make_resume_brief(brief, driver, service) if resume_state.started else brief
    # Used time is known to about a heartbeat, so what is left after a crash may be less than that.
    min_seconds = HEARTBEAT_SECONDS if resume_state.started else 0.0
    while True:
        answered = driver.count_answered_requests()
        seconds_left = service.remaining_seconds()
        last_exit = launcher(round_brief, seconds_left) if seconds_left > min_seconds else NO_TIME_LEFT
        rounds, agent_seconds = rounds + 1, agent_seconds + last_exit.wall_seconds
        logger.info(
            "Round %d of the agent: %s after %.1f s, exit code %s",
            rounds,
            last_exit.reason,
            last_exit.wall_seconds,
            last_exit.code,
        )
        # an agent that sent no request to its driver would not do so in the next round either
        idle = driver.count_answered_requests() == answered
        failed = last_exit.reason != "exited" or last_exit.code != 0
        first_round = rounds == resume_state.rounds + 1
        if round_brief.resumed and first_round and last_exit.reason == "exited" and failed and idle:
            _record_round_end(last_exit, None, recorder)
            recorder.record_event("warning", text=RESTART_WARNING)
            prompt = f"{brief.prompt}\n{round_brief.prompt}"
            round_brief = replace(round_brief, prompt=prompt, resumed=False)
            continue
        agent_end = None
        if failed or rounds > max_continues or idle or not _has_budget_to_continue(service):
            agent_end = _make_agent_end(last_exit, driver, service, recorder, rounds, agent_seconds)
        # One record holds both. A crash between two would start an agent again whose time is over.
        _record_round_end(last_exit, agent_end, recorder)
        if agent_end:
            return agent_end
        prompt = make_continue_prompt(
            service.remaining_seconds(), service.setup.baseline, service.find_best()
        )
        round_brief = replace(round_brief, prompt=prompt, resumed=True)
        recorder.record_entry("continued", round=rounds + 1, left_seconds=service.remaining_seconds())


def _make_agent_end(
    last_exit: Exit,
    driver: DriverSession,
    service: GradingService,
    recorder: Recorder,
    rounds: int,
    agent_seconds: float,
) -> AgentEnd:
    """Return how the agent's time ended. At a deadline, the clock says which limit was reached."""
    submitted = bool(service.list_submissions())
    ending, reason = classify_ending(last_exit, driver, recorder.paths.agent_log, submitted)
    if ending == "deadline":
        ending, limit_reason = service.clock.describe_end()
        reason = " ".join(filter(None, (limit_reason, reason)))
    return AgentEnd(
        ending=ending,
        reason=reason,
        rounds=rounds,
        agent_seconds=agent_seconds,
        submission_seconds=service.clock.submission_seconds(),
        gpu_seconds=service.clock.gpu_seconds(),
    )


def _make_resume_brief(brief: Brief, driver: DriverSession, service: GradingService) -> Brief:
    """Return the brief for an agent that resumes its session, or starts anew if it never used its driver."""
    resume_prompt = make_resume_prompt(
        service.remaining_seconds(), service.setup.baseline, service.find_best(), service.list_submissions()
    )
    has_session = driver.count_answered_requests() > 0
    return replace(
        brief,
        prompt=resume_prompt if has_session else f"{brief.prompt}\n{resume_prompt}",
        resumed=has_session,
        environment={**brief.environment, "RESUMED": "1"},
    )


def _has_budget_to_continue(service: GradingService) -> bool:
    min_seconds = min(LEAST_SECONDS, LEAST_SHARE * service.budget.wall_seconds)
    return service.can_take() and service.remaining_seconds() > min_seconds


def _record_round_end(last_exit: Exit, agent_end: AgentEnd | None, recorder: Recorder) -> None:
    recorder.record_entry(
        "ended",
        reason=last_exit.reason,
        code=last_exit.code,
        detail=last_exit.detail,
        peak_memory_bytes=last_exit.peak_memory_bytes,
        over=agent_end.model_dump() if agent_end else None,
    )


# The agent's own accounts, saved before its HOME is deleted. None of them is trusted.

CLAIMS_FILE = f"{REPORTS}/summary.jsonl"
MOST_CLAIM_BYTES = 4 << 20
MOST_CLAIMS = 1000
LONGEST_NAME, LONGEST_CALL = 200, 500
"""Characters of a tool call on the timeline. The transcript has all of it."""


def save_self_reports(agent: Agent, home: Path, recorder: Recorder) -> None:
    paths = recorder.paths
    try:
        recorder.record_account(paths.agent_log)
        recorder.record_account(paths.claims, read_claims(paths.workspace))
        if isinstance(agent, DrivenAgent):
            transcript = agent.transcript(paths.agent_log, home)
            recorder.record_account(paths.transcript, transcript)
            logger.debug("The transcript has %d steps", len(transcript.steps))
            _record_tool_calls(transcript, recorder)
    except Exception:
        recorder.record_event("fault", where="the agent's own accounts", trace=traceback.format_exc())


def _record_tool_calls(transcript: Transcript, recorder: Recorder) -> None:
    """Record the tool calls with the agent's own times; on the timeline they come after everything else.

    Calls that were recorded before a crash are not recorded again.
    """
    calls = []
    for step in transcript.steps:
        failed = {seen.call for seen in step.observations if seen.failed}
        for call in step.calls:
            name, shown = sanitize_line(call.name, LONGEST_NAME), sanitize_line(call.shown, LONGEST_CALL)
            calls.append(ClaimedToolCall(at=step.at, name=name, shown=shown, failed=call.id in failed))
    for tool_call in calls[recorder.resume_state.events.get("tool", 0) :]:
        recorder.record_event("tool", **tool_call.model_dump())


def read_claims(workspace: Path) -> AttemptClaims:
    """Read the agent's notes on its attempts, as far as they have the requested form."""
    lines = (read_untrusted_file(workspace, CLAIMS_FILE, MOST_CLAIM_BYTES) or b"").splitlines()
    lines = [line for line in lines if line.strip()]
    claims = [claim for line in lines[:MOST_CLAIMS] if (claim := _parse_claim(line))]
    return AttemptClaims(claims=tuple(claims), unread=len(lines) - len(claims))


def _parse_claim(line: bytes) -> AttemptClaim | None:
    try:
        return AttemptClaim.model_validate_json(line)
    except ValidationError:
        return None
