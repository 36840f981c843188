"""Score an answer as the grader does under the paper's protocol, for rewards on training data."""

from agent2rl.evaluators.code_tests.evaluator import build_published_program, reward


def evaluate(
    question: str, model_answer: str, reference_answer: str, test: str, entry_point: str, **_: object
) -> float:
    """Return 1.0 if the answer's function passes all tests, else 0.0."""
    return reward(question, model_answer, reference_answer, test, entry_point, build_published_program)
