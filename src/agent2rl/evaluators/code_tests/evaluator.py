"""Ask a model for functions and score them: 1 if all tests pass, else 0.

If the data of a problem is not plain (its reference solution takes or returns values that cannot cross the
socket), its tests run inside the sandbox with the program. Such a verdict could be forged, so it is marked.
The reference decides which problems these are, never the program: a program that returns such a value when
its reference does not has failed.

The program is the prompt with the answer after it, as in the official evaluation. If that does not compile,
`extract_program` finds the program in the answer by textual rules, and what follows its code is cut off.
Both are only text here: they are parsed as Python in the sandbox.
"""

import hashlib
import multiprocessing.util
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from agent2rl.core.engine import Chat, Engine
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import EvalResult, EvalSettings, SampledAnswer
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests.pool import ProgramJob, ProgramPool, ProgramVerdict
from agent2rl.evaluators.scorers import cut_reasoning
from agent2rl.evaluators.single_turn import EvaluationProgress, QuestionPrompt, compute_pass_metrics

# Extracting the program from an answer: a complete function or the rest of one, fenced or not

FENCE = re.compile(r"^[ \t]{0,8}```[^\n]*\n(.*?)(?:^[ \t]{0,8}```|\Z)", re.MULTILINE | re.DOTALL)
PUBLISHED_BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
LONGEST = 1 << 16
"""Only this many characters of an answer are read: a tokenizer can have very long tokens."""
ASSIGNMENT = r"[A-Za-z_]\w{0,99}(?: ?:[^=\n]{1,200}| {0,8})=(?!=)"
FIRST_CODE = re.compile(
    rf"^(?:async def |def |class |import [\w.]|from [\w.]+ import |@\w|{ASSIGNMENT})", re.MULTILINE
)


def extract_program(prompt: str, entry: str, answer: str) -> str:
    """Return the prompt's function as the answer completes it. Words may follow the code."""
    defined = re.compile(rf"^(?:async )?def {re.escape(entry)}\b", re.MULTILINE)
    before = next((prompt[: found.start()] for found in defined.finditer(prompt)), "")
    for block in [match[1] for match in FENCE.finditer(answer)]:
        if defined.search(block):
            return before + block
    if (found := defined.search(answer)) is not None:
        # Imports and helpers may come before the function.
        first = FIRST_CODE.search(answer)
        return before + answer[min(found.start(), first.start() if first else found.start()) :]
    return prompt + _extract_body(answer)


def _extract_body(answer: str) -> str:
    """Return the rest of a function: the answer itself, or its first fenced block after some words."""
    block = FENCE.search(answer)
    # An answer that begins with white space goes on with the function's body.
    if block and block[1].strip() and not answer[: block.start()].startswith((" ", "\t", "\n")):
        return block[1]
    return answer


def build_program(prompt: str, entry: str, answer: str) -> tuple[str, str]:
    """Return the prompt with the answer after it, and the program to test if that does not compile."""
    return prompt + answer, extract_program(prompt, entry, answer)


def build_published_program(prompt: str, entry: str, answer: str) -> tuple[str, str]:
    """Return the prompt with the answer's first fenced block after it, or with the answer if it has none.

    This is the rule of the paper's protocol. The answer must have the whole function: its leading white space
    is cut, so a body alone does not compile.
    """
    del entry
    block = PUBLISHED_BLOCK.search(answer)
    program = prompt + (block[1] if block else answer).lstrip()
    return program, program


BuildProgram = Callable[[str, str, str], tuple[str, str]]
"""Gets the prompt, the function's name and the answer; returns a program, and one to try if it does not
compile."""

RULE = "code-tests-2"
"""Must change whenever the same answers could get other verdicts."""


@dataclass(frozen=True)
class CodeTests:
    """Evaluates examples whose prompt starts a function, with `test` and `entry_point` in their meta."""

    prompt: QuestionPrompt = field(default_factory=QuestionPrompt)
    program_workers: int = 8
    rule: str = RULE
    """Must change whenever the same answers could get other verdicts."""
    build: BuildProgram = build_program

    @property
    def version(self) -> str:
        return f"{self.rule}+{hashlib.sha256(repr(self.prompt).encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        answers = self.prompt.sample_answers(engine, examples, settings)
        jobs = [build_job(example, text, self.build) for example, text in answers.list_pairs()]
        with ProgramPool.open() as pool:
            verdicts = judge_programs(pool, jobs)
        judged = zip(answers.list_pairs(), verdicts, strict=True)
        attempts = [SampledAnswer(output=text, score=float(v.passed), note=v.note) for (_, text), v in judged]
        return answers.build_eval_result(
            attempts, compute_pass_metrics, tests_inside=sum(verdict.inside for verdict in verdicts)
        )

    def chat(self, example: Example, templated: bool) -> Chat:
        """Return the prompt of an example."""
        return self.prompt.build_prompt(example, templated)

    def with_prompts(self, prompts: PromptTemplates) -> Self:
        return replace(self, prompt=self.prompt.with_prompts(prompts))


def build_job(example: Example, answer: str, build: BuildProgram = build_program) -> ProgramJob:
    """Build the job that tests an answer."""
    entry, test = example.meta.get("entry_point"), example.meta.get("test")
    if not isinstance(entry, str) or not entry.isidentifier() or not isinstance(test, str):
        raise GradingError(f"The example {example.id} has no entry_point and test.", "Fix the task's data.")
    answer = cut_reasoning(answer)[:LONGEST]
    program, fallback = build(example.prompt, entry, answer)
    return ProgramJob(
        program=program,
        fallback=fallback,
        entry=entry,
        reference=example.prompt + example.target,
        test=test,
    )


def judge_programs(pool: ProgramPool, jobs: Sequence[ProgramJob]) -> list[ProgramVerdict]:
    """Return a verdict for each job; equal jobs are judged once."""
    distinct = list(dict.fromkeys(jobs))
    verdicts = dict(
        zip(
            distinct,
            pool.judge_jobs(distinct, EvaluationProgress(len(distinct), "programs judged")),
            strict=True,
        )
    )
    if unplain := [job for job in distinct if verdicts[job].unplain]:
        unplain_problems = _find_unplain_problems(pool, unplain)
        inside = [job for job in unplain if (job.entry, job.reference, job.test) in unplain_problems]
        again = pool.judge_jobs([replace(job, inside=True) for job in inside])
        verdicts |= dict(zip(inside, again, strict=True))
    return [verdicts[job] for job in jobs]


def _find_unplain_problems(pool: ProgramPool, jobs: Sequence[ProgramJob]) -> set[tuple[str, str, str]]:
    """Return the problems whose data is not plain according to their reference solutions."""
    problems = list(dict.fromkeys((job.entry, job.reference, job.test) for job in jobs))
    verdicts = pool.judge_jobs(
        [ProgramJob(reference, entry, reference, test) for entry, reference, test in problems]
    )
    return {problem for problem, verdict in zip(problems, verdicts, strict=True) if verdict.unplain}


def reward(
    prompt: str,
    answer: str,
    reference: str,
    test: str,
    entry: str,
    build: BuildProgram = build_program,
) -> float:
    """Return the reward of one answer, for training. Uses a pool that stays open while the process lives."""
    example = Example("", prompt, reference, {"test": test, "entry_point": entry})
    return float(judge_programs(_open_pool(), [build_job(example, answer, build)])[0].passed)


_pools: dict[int, ProgramPool] = {}
_opening = threading.Lock()


def _open_pool() -> ProgramPool:
    """Return the pool of this process: a forked process cannot use its parent's."""
    with _opening:
        if os.getpid() not in _pools:
            _pools[os.getpid()] = pool = ProgramPool.open()
            # For processes of multiprocessing, which end without atexit; it calls both for others.
            multiprocessing.util.Finalize(pool, pool.close, exitpriority=10)
        return _pools[os.getpid()]
