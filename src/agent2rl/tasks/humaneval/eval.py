"""What an answer is worth, as the grader sees it: for rewards on training data."""

from agent2rl.evaluators.code_tests.evaluator import reward


def evaluate(
    question: str, model_answer: str, reference_answer: str, test: str, entry_point: str, **_: object
) -> float:
    """1.0 where the answer's function passes all tests, else 0.0."""
    return reward(question, model_answer, reference_answer, test, entry_point)
