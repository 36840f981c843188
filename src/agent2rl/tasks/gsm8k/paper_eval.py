"""Score an answer as the grader does under the paper's protocol, for rewards on training data."""

from agent2rl.evaluators.scorers import same_published_number


def evaluate(model_answer: str, reference_answer: str, **_: object) -> float:
    """Return 1.0 if the answer's last number is the reference's, else 0.0."""
    return same_published_number(model_answer, reference_answer)
