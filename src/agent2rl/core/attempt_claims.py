"""What an agent says of its own attempts. It is the agent's word, to be held against the record."""

from typing import Annotated

from pydantic import Field

from agent2rl.core.record import Record


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
