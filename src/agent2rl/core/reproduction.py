"""Records of reproductions: a submission's recorded code ran again, and what it trained was graded."""

from typing import Annotated, Literal

from pydantic import Field

from agent2rl.core.base_record import Record
from agent2rl.core.grading_records import EvalScore, HeldoutComparison, Split

ReproductionAnswer = Literal["reproduced", "not reproduced", "cannot"]
REPRODUCTION_ANSWERS: tuple[ReproductionAnswer, ...] = ("reproduced", "not reproduced", "cannot")

WORKSPACE_MARK = "{{WORKSPACE}}"
"""Stands for the path of the workspace in recorded steps."""


class RecordedStep(Record):
    """A program that the agent ran, as its process was recorded."""

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    directory: str = ""
    """Working directory relative to the workspace; empty: the workspace itself."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables beyond those that every agent gets."""
    seconds: float = 0.0
    """How long it ran, up to the submission."""
    background: bool = False
    """Whether the next step began before it ended."""
    gap_seconds: float = 0.0
    """Time to the start of the next step, if it ran in the background."""
    finished: bool = True
    """Whether it had ended when the submission was accepted."""


class Reproduction(Record):
    """The answer to: does the recorded code train this submission again?"""

    at: float
    """Seconds since the epoch."""
    submission: Annotated[int, Field(ge=1)]
    revision: Annotated[int, Field(ge=1)]
    """Of the agent's code, as it was when the submission was accepted."""
    answer: ReproductionAnswer
    reason: str = ""
    """Why it is not `reproduced`; empty if the figures say it."""
    split: Split | None = None
    """The split that both are compared on."""
    original: EvalScore | None = None
    """The submission's score on that split."""
    retrained: EvalScore | None = None
    difference: HeldoutComparison | None = None
    """Retrained minus original, on the same examples."""
    baseline: float | None = None
    """Score of the untouched model on that split."""
    same_weights: bool | None = None
    """Whether both have the same weights, bit for bit; None if that is not known."""
    named: bool = False
    """Whether the user named the steps."""
    steps: tuple[RecordedStep, ...] = ()
    left_out: tuple[str, ...] = ()
    """Recorded programs that did not run again, and why."""
    withheld: tuple[str, ...] = ()
    """Files of the recorded code that the reproduction did not get, and why."""
    differences: tuple[str, ...] = ()
    """What differs from the original run's environment."""
    run: str | None = None
    """The run in `reproductions/` that did it; None if nothing ran."""
    run_head: str | None = None
    """The hash of its last ledger record."""
