"""What the agent itself says of its work, kept beside the record before its HOME goes. None of it is trusted.

Its log, its transcript, its notes of attempts. What cannot be read costs that account, not the run's result.
"""

import traceback
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.agent import Agent, Driven
from agent2rl.core.claims import Claim, Claims
from agent2rl.runner.brief import REPORTS
from agent2rl.store.left import read_left
from agent2rl.store.recorder import Recorder

NOTES = f"{REPORTS}/summary.jsonl"
MOST_BYTES = 4 << 20
MOST = 1000


def keep(agent: Agent, home: Path, recorder: Recorder) -> None:
    paths = recorder.paths
    try:
        recorder.account(paths.agent_log)
        recorder.account(paths.claims, read_claims(paths.workspace))
        if isinstance(agent, Driven):
            recorder.account(paths.transcript, agent.transcript(paths.agent_log, home))
    except Exception:
        recorder.event("fault", where="the agent's own accounts", trace=traceback.format_exc())


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
