"""Scores one answer between 0 and 1. Runs in the grading child, in a sandbox; the agent never sees this file."""


def evaluate(question, model_answer, reference_answer, **kwargs):
    return 1.0 if model_answer.strip() == reference_answer else 0.0
