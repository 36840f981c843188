"""Score an answer by the rubric as the grader does, for rewards on training data."""

from typing import Any

from agent2rl.evaluators.scorers import score_qualities


def evaluate(model_answer: str, **row: Any) -> float:
    """Return the share of the five qualities that the answer has; `row` is the rest of a training row."""
    return score_qualities(model_answer, row)
