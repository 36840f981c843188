"""What an agent says of its own work: its transcript, in one form for all agents, and claims about its
attempts. Never trusted.

The gateway's count of tokens is the one that holds; the agent's own stands here to be compared with it.
"""

import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from agent2rl.core.llm import TokenCounts
from agent2rl.core.record import Record

# What an agent said and did, in one form for all agents. The agent itself wrote it, so it is a claim.


class AgentToolCall(Record):
    id: str
    name: str
    arguments: JsonValue = None

    @property
    def shown(self) -> str:
        """The command where it is one, else all arguments."""
        command = self.arguments.get("command") if isinstance(self.arguments, dict) else None
        return command if isinstance(command, str) else json.dumps(self.arguments, ensure_ascii=False)


class ToolObservation(Record):
    """What a tool call gave back."""

    call: str
    """The id of the call."""
    text: str
    failed: bool = False


class TranscriptStep(Record):
    source: Literal["system", "user", "agent"]
    text: str = ""
    reasoning: str = ""
    calls: tuple[AgentToolCall, ...] = ()
    observations: tuple[ToolObservation, ...] = ()
    """Of this step's calls, as far as they came back."""
    tokens: TokenCounts | None = None
    at: float | None = None


class Transcript(Record):
    agent: str
    version: str = ""
    model: str = ""
    session: str = ""
    """By which the agent can be told to go on."""
    steps: tuple[TranscriptStep, ...] = ()
    tokens: TokenCounts | None = None
    """All of it, as the agent counts."""
    error: str = ""
    """Why it ended, where the agent itself says that something went wrong."""
    unread: int = 0
    """Lines or parts that could not be understood."""


# What an agent says of its own attempts. It is the agent's word, to be held against the record.


class AttemptClaim(Record):
    """One attempt: a line of the workspace's reports/summary.jsonl."""

    attempt: int
    route: Annotated[str, Field(max_length=200)]
    """How it was trained; several ways in their order are joined by `+`."""
    what: Annotated[str, Field(max_length=4000)]
    submission: int | None = None
    score: float | None = None
    learnt: Annotated[str, Field(max_length=4000)] = ""


class AttemptClaims(Record):
    claims: tuple[AttemptClaim, ...] = ()
    unread: int = 0
    """Lines that are no claim, or too many."""
