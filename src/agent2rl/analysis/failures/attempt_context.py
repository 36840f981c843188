"""What a diagnosis rests on beside the span, and what it is made of."""

from dataclasses import dataclass

from agent2rl.analysis.findings import Failure, FailureKind, PrintedCurve
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import Ending, ExampleResult

ENOUGH = 0.5
"""A reason that likely needs no other."""


@dataclass(frozen=True)
class AttemptContext:
    """What is known of an attempt beside its span. Scores are in percent."""

    baseline: float | None = None
    best_before: float | None = None
    """The best score of the submissions before."""
    curves: tuple[PrintedCurve, ...] = ()
    baseline_results: tuple[ExampleResult, ...] = ()
    """Of the untouched model, on the examples that answer submissions; empty where they are not known."""
    results: tuple[ExampleResult, ...] = ()
    """Of this submission, on the same."""
    exchanges: tuple[LlmExchange, ...] = ()
    """With the driver LLM, in this span."""
    ending: Ending | None = None
    """Of the agent, in the last span; None: it goes on, or nobody knows."""
    left_seconds: float | None = None
    """Of the budget, at the end of this span."""
    wall_seconds: float | None = None
    """The whole budget."""


def build_failure(kind: FailureKind, message: str, confidence: float, *evidence: str) -> Failure:
    return Failure(kind=kind, message=message, confidence=confidence, evidence=evidence)


def shorten_text(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= 200 else first[:199] + "…"
