"""HumanEval under the paper's protocol: no examples, and the first fenced block of the reply."""

import pytest

from agent2rl import registry
from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests.evaluator import CodeTests, build_job, judge_programs
from agent2rl.evaluators.code_tests.pool import ProgramPool

PROMPT = 'def double(x):\n    """Return twice x."""\n'
EXAMPLE = Example(
    "h",
    PROMPT,
    "    return 2 * x\n",
    {"entry_point": "double", "test": "def check(candidate):\n    assert candidate(4) == 8\n"},
)
WHOLE = "def double(x):\n    return x + x\n"


def find_evaluator() -> CodeTests:
    found = registry.find_task("humaneval").apply_profile("paper-humaneval-1").evaluator
    assert isinstance(found, CodeTests)
    return found


def test_the_model_is_asked_once_with_the_function_on_the_next_line() -> None:
    evaluator = find_evaluator()
    (message,) = evaluator.chat(EXAMPLE, templated=True)
    assert message.role == "user"
    assert message.content.endswith(f"Reply with its code alone.\n{PROMPT}")
    assert evaluator.prompt.sampling.max_tokens == 8192
    assert evaluator.chat(EXAMPLE, templated=False) == (message,)


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        (f"```python\n{WHOLE}```", PROMPT + WHOLE),
        (f"Here it is:\n```\n\n  {WHOLE}```\nand\n```python\nbroken(\n```", PROMPT + WHOLE),
        (WHOLE, PROMPT + WHOLE),
        (f"<think>```python\nno\n```</think>```python\n{WHOLE}```", PROMPT + WHOLE),
        ("```python\n    return x + x\n```", f"{PROMPT}return x + x\n"),
    ],
)
def test_the_first_fenced_block_follows_the_prompt(reply: str, program: str) -> None:
    job = build_job(EXAMPLE, reply, find_evaluator().build)
    assert (job.program, job.fallback) == (program, program)


def test_a_whole_function_passes_and_a_body_alone_fails() -> None:
    build = find_evaluator().build
    replies = [f"```python\n{WHOLE}```", "```python\n    return x + x\n```", "def double(x):\n    return x\n"]
    with ProgramPool.open() as pool:
        verdicts = judge_programs(pool, [build_job(EXAMPLE, reply, build) for reply in replies])
    assert [verdict.passed for verdict in verdicts] == [True, False, False]


def test_the_test_set_is_problems_82_to_163() -> None:
    splits = registry.find_task("humaneval").apply_profile("paper-humaneval-1").load(None)
    scoring = {one.id for one in (*splits.feedback, *splits.heldout)}
    assert scoring == {f"HumanEval/{number}" for number in range(82, 164)}
    assert [one.id for one in splits.train] == [f"HumanEval/{number}" for number in range(82)]
