"""Score an answer as the grader does, for rewards on training data."""

from agent2rl.evaluators.scorers import exact_number


def evaluate(model_answer: str, reference_answer: str, **_: object) -> float:
    """Return 1.0 if both end in the same number, else 0.0."""
    return exact_number(model_answer, reference_answer)
