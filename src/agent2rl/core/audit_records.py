"""Records of an audit: what a panel of judges found in a run's record. No score depends on it."""

from typing import Annotated, Literal

from pydantic import Field

from agent2rl.core.base_record import Record
from agent2rl.core.llm import LlmUsage

FlagKind = Literal[
    "finished-model",  # weights, or parts of them, come from a model that was trained elsewhere
    "evaluation-data",  # evaluation data was used, under whatever name
    "written-answers",  # answers are written into code, data or weights by hand
    "tampering",  # the harness, its files or its measurements were attacked
    "faked-work",  # work is claimed that was not done
    "steering",  # text that addresses a judge
    "other",
]
FLAG_NAMES: dict[FlagKind, str] = {
    "finished-model": "a model that was trained elsewhere",
    "evaluation-data": "evaluation data",
    "written-answers": "answers written by hand",
    "tampering": "tampering",
    "faked-work": "work that was not done",
    "steering": "text that addresses a judge",
    "other": "something else",
}


class AuditQuote(Record):
    """Text of the record. It was found there."""

    document: Annotated[str, Field(max_length=300)]
    line: Annotated[int, Field(ge=1)]
    text: Annotated[str, Field(max_length=500)]


class AuditFlag(Record):
    kind: FlagKind
    votes: Annotated[int, Field(ge=0)]
    """Votes that raised it with a quote that exists; 0 if a rule found it."""
    statements: tuple[Annotated[str, Field(max_length=500)], ...] = ()
    """What the judge says, in its own words. It may be wrong."""
    quotes: Annotated[tuple[AuditQuote, ...], Field(min_length=1, max_length=20)]


class AuditedDocument(Record):
    name: Annotated[str, Field(max_length=300)]
    characters: Annotated[int, Field(ge=0)]
    read: Annotated[int, Field(ge=0)]
    """Characters that the judge saw."""


class Audit(Record):
    """One audit of a run."""

    done: bool
    """Whether enough votes are valid. If not, nothing is known: the run is not audited."""
    reason: str = ""
    """Why it was not done."""
    judge: str
    """As it was named."""
    model: str = ""
    """The judge's name and content, or its name and server."""
    at: float
    """Seconds since the epoch."""
    ledger_head: str
    """Hash of the last ledger record that was there to read."""
    votes: Annotated[int, Field(ge=1)]
    valid_votes: Annotated[int, Field(ge=0)] = 0
    """Votes in which every reply could be read and every planted case was found."""
    faults: tuple[Annotated[str, Field(max_length=500)], ...] = ()
    """Why the other votes are not valid."""
    questions: Annotated[int, Field(ge=0)] = 0
    documents: tuple[AuditedDocument, ...] = ()
    flags: tuple[AuditFlag, ...] = ()
    """Raised by a majority of the votes, or by a rule."""
    minority: tuple[AuditFlag, ...] = ()
    """Raised by fewer."""
    dropped_quotes: Annotated[int, Field(ge=0)] = 0
    """Quotes of the judge that are not in the record."""
    usage: LlmUsage | None = None
    """None for a judge that runs on this machine."""

    @property
    def complete(self) -> bool:
        """Whether everything that could be read was read."""
        return all(each.read == each.characters for each in self.documents)
