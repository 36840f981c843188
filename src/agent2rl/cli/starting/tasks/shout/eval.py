"""Score one answer between 0 and 1. Runs in a sandboxed grading process; the agent never sees this file."""


def evaluate(question, model_answer, reference_answer, **kwargs):
    return 1.0 if model_answer.strip() == reference_answer else 0.0
