"""What the agent itself says of its work, kept beside the record before its HOME goes. None of it is trusted.

Its log, its transcript, its notes of attempts; its tool calls go onto the timeline, too. What cannot be read
costs that account, not the run's result.
"""

import traceback
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.agent import Agent, DrivenAgent
from agent2rl.core.attempt_claims import AttemptClaim, AttemptClaims
from agent2rl.core.events import ClaimedToolCall
from agent2rl.core.transcript import Transcript
from agent2rl.runner.agent_prompts import REPORTS
from agent2rl.store.recorder import Recorder
from agent2rl.store.untrusted_files import read_untrusted_file, sanitize_line

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
