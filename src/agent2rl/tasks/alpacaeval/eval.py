"""What an answer is worth by the rubric, as the grader sees it: for rewards on training data."""

from typing import Any

from agent2rl.evaluators.scorers import score_qualities


def evaluate(model_answer: str, **asked: Any) -> float:
    """The share of the five qualities that the answer has; `asked` is the rest of a training row."""
    return score_qualities(model_answer, asked)
