"""An agent's reports about its own work: its transcript and its claims about its attempts. Never trusted.

The gateway's token counts are authoritative; the agent's own are kept for comparison.
"""

import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from agent2rl.core.base_record import Record
from agent2rl.core.llm import TokenCounts

# Transcripts, in one form for all agents. The agent itself wrote them, so they are claims.


class AgentToolCall(Record):
    id: str
    name: str
    arguments: JsonValue = None

    @property
    def shown(self) -> str:
        """The command if there is one, else all arguments as JSON."""
        command = self.arguments.get("command") if isinstance(self.arguments, dict) else None
        return command if isinstance(command, str) else json.dumps(self.arguments, ensure_ascii=False)


class ToolObservation(Record):
    """The result of a tool call."""

    call: str
    """Id of the call."""
    text: str
    failed: bool = False


class TranscriptStep(Record):
    source: Literal["system", "user", "agent"]
    text: str = ""
    reasoning: str = ""
    calls: tuple[AgentToolCall, ...] = ()
    observations: tuple[ToolObservation, ...] = ()
    """Results of this step's calls, as far as there are any."""
    tokens: TokenCounts | None = None
    at: float | None = None


class Transcript(Record):
    agent: str
    version: str = ""
    model: str = ""
    session: str = ""
    """Session id, with which the agent can be resumed."""
    steps: tuple[TranscriptStep, ...] = ()
    tokens: TokenCounts | None = None
    """Total by the agent's own count."""
    error: str = ""
    """Why it ended, if the agent itself reports an error."""
    unread: int = 0
    """Lines or parts that could not be parsed."""


# Claims about attempts: the agent's own word, to be compared with the record


class AttemptClaim(Record):
    """One attempt: a line of the workspace's reports/summary.jsonl."""

    attempt: int
    route: Annotated[str, Field(max_length=200)]
    """Training method; several methods in sequence are joined by `+`."""
    what: Annotated[str, Field(max_length=4000)]
    submission: int | None = None
    score: float | None = None
    learnt: Annotated[str, Field(max_length=4000)] = ""


class AttemptClaims(Record):
    claims: tuple[AttemptClaim, ...] = ()
    unread: int = 0
    """Lines that are not valid claims, or are beyond the maximum."""
