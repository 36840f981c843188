"""HumanEval as published: a chat without examples, and the first fenced block of the reply after the prompt.

The form is that of OpenCompass's `humaneval_gen` (openai_sample_evals_gen_dcae0e).
"""

from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import PublishedProfile
from agent2rl.evaluators.code_tests.evaluator import CodeTests, build_published_program
from agent2rl.evaluators.single_turn import QuestionPrompt

PAPER = PublishedProfile(
    name="paper-humaneval",
    version=1,
    evaluator=CodeTests(
        prompt=QuestionPrompt(
            chat="Read the signature and docstring of this function, and write the whole function. "
            "Reply with its code alone.\n{question}",
            sampling=Sampling(max_tokens=8192),
        ),
        rule="paper-humaneval-1",
        build=build_published_program,
    ),
    scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
    exposes={"eval.py": Path(__file__).with_name("paper_eval.py")},
)
