"""What the agent itself says of its work, kept beside the record before its HOME goes. None of it is trusted.

Its log, its transcript, its notes of attempts; its tool calls go onto the timeline, too. What cannot be read
costs that account, not the run's result.
"""

import traceback
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.agent import Agent, Driven
from agent2rl.core.claims import Claim, Claims
from agent2rl.core.events import Called
from agent2rl.core.transcript import Transcript
from agent2rl.runner.brief import REPORTS
from agent2rl.store.left import plain, read_left
from agent2rl.store.recorder import Recorder

NOTES = f"{REPORTS}/summary.jsonl"
MOST_BYTES = 4 << 20
MOST = 1000
LONGEST_NAME, LONGEST_CALL = 200, 500
"""Characters of a tool call on the timeline; the transcript has all of it."""


def keep(agent: Agent, home: Path, recorder: Recorder) -> None:
    paths = recorder.paths
    try:
        recorder.account(paths.agent_log)
        recorder.account(paths.claims, read_claims(paths.workspace))
        if isinstance(agent, Driven):
            transcript = agent.transcript(paths.agent_log, home)
            recorder.account(paths.transcript, transcript)
            _note_calls(transcript, recorder)
    except Exception:
        recorder.event("fault", where="the agent's own accounts", trace=traceback.format_exc())


def _note_calls(transcript: Transcript, recorder: Recorder) -> None:
    """With the time that the agent gives; on the timeline they come after all else that it did.

    Those that a harness noted before it died are not noted again.
    """
    calls = []
    for step in transcript.steps:
        failed = {seen.call for seen in step.observations if seen.failed}
        for call in step.calls:
            name, shown = plain(call.name, LONGEST_NAME), plain(call.shown, LONGEST_CALL)
            calls.append(Called(at=step.at, name=name, shown=shown, failed=call.id in failed))
    for called in calls[recorder.past.events.get("tool", 0) :]:
        recorder.event("tool", **called.model_dump())


def read_claims(workspace: Path) -> Claims:
    """The agent's notes, as far as they have the form that it was asked for."""
    lines = (read_left(workspace, NOTES, MOST_BYTES) or b"").splitlines()
    lines = [line for line in lines if line.strip()]
    found = [claim for line in lines[:MOST] if (claim := _claim(line))]
    return Claims(claims=tuple(found), unread=len(lines) - len(found))


def _claim(line: bytes) -> Claim | None:
    try:
        return Claim.model_validate_json(line)
    except ValidationError:
        return None
