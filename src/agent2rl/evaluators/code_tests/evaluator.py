"""Asks a model for functions and scores what they do: 1 where all tests pass, else 0.

Where a problem's data is not plain (its reference solution takes or returns what cannot cross the line), its
tests run where the program runs, and the verdict is marked: such a one could be forged. Which problems these
are, the reference decides and never the program: one that returns what its reference would not has failed.
"""

import hashlib
import multiprocessing.util
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from agent2rl.core.engine import Chat, Engine
from agent2rl.core.errors import GradingError
from agent2rl.core.records import EvalResult, EvalSettings, PromptTemplates, SampledAnswer
from agent2rl.core.task import Example
from agent2rl.evaluators.answer_sampling import QuestionPrompt, compute_pass_metrics
from agent2rl.evaluators.code_tests.extraction import extract_program
from agent2rl.evaluators.code_tests.pool import ProgramJob, ProgramPool, ProgramVerdict
from agent2rl.evaluators.progress import EvaluationProgress

RULE = "code-tests-1"
"""Changes whenever the same answers could get other verdicts."""


@dataclass(frozen=True)
class CodeTests:
    """For examples whose prompt begins a function and whose meta has `test` and `entry_point`."""

    asking: QuestionPrompt = field(default_factory=QuestionPrompt)
    program_workers: int = 8

    @property
    def version(self) -> str:
        return f"{RULE}+{hashlib.sha256(repr(self.asking).encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        answers = self.asking.sample_answers(engine, examples, settings)
        jobs = [build_job(example, text) for example, text in answers.list_pairs()]
        with ProgramPool.open() as pool:
            verdicts = judge_programs(pool, jobs)
        judged = zip(answers.list_pairs(), verdicts, strict=True)
        attempts = [SampledAnswer(output=text, score=float(v.passed), note=v.note) for (_, text), v in judged]
        return answers.build_eval_result(
            attempts, compute_pass_metrics, tests_inside=sum(verdict.inside for verdict in verdicts)
        )

    def chat(self, example: Example, templated: bool) -> Chat:
        """What the model is asked."""
        return self.asking.build_prompt(example, templated)

    def prompted(self, prompts: PromptTemplates) -> Self:
        return replace(self, asking=self.asking.prompted(prompts))


def build_job(example: Example, answer: str) -> ProgramJob:
    """The answer as a program to be judged."""
    entry, test = example.meta.get("entry_point"), example.meta.get("test")
    if not isinstance(entry, str) or not entry.isidentifier() or not isinstance(test, str):
        raise GradingError(f"The example {example.id} has no entry_point and test.", "Mend the task's data.")
    return ProgramJob(
        program=extract_program(example.prompt, entry, answer),
        entry=entry,
        reference=example.prompt + example.target,
        test=test,
    )


def judge_programs(pool: ProgramPool, jobs: Sequence[ProgramJob]) -> list[ProgramVerdict]:
    """A verdict for each; equal jobs are judged once."""
    distinct = list(dict.fromkeys(jobs))
    found = dict(
        zip(
            distinct,
            pool.judge_jobs(distinct, EvaluationProgress(len(distinct), "programs judged")),
            strict=True,
        )
    )
    if unplain := [one for one in distinct if found[one].unplain]:
        odd = _find_unplain_problems(pool, unplain)
        inside = [one for one in unplain if (one.entry, one.reference, one.test) in odd]
        again = pool.judge_jobs([replace(one, inside=True) for one in inside])
        found |= dict(zip(inside, again, strict=True))
    return [found[one] for one in jobs]


def _find_unplain_problems(pool: ProgramPool, jobs: Sequence[ProgramJob]) -> set[tuple[str, str, str]]:
    """Which of these problems have data that is not plain, going by their reference solutions."""
    problems = list(dict.fromkeys((one.entry, one.reference, one.test) for one in jobs))
    verdicts = pool.judge_jobs(
        [ProgramJob(reference, entry, reference, test) for entry, reference, test in problems]
    )
    return {problem for problem, verdict in zip(problems, verdicts, strict=True) if verdict.unplain}


def reward(prompt: str, answer: str, reference: str, test: str, entry: str) -> float:
    """What one answer is worth, for training: in a pool that stays open as long as the process lives."""
    example = Example("", prompt, reference, {"test": test, "entry_point": entry})
    return float(judge_programs(_open_pool(), [build_job(example, answer)])[0].passed)


_pools: dict[int, ProgramPool] = {}
_opening = threading.Lock()


def _open_pool() -> ProgramPool:
    """This process's own: a forked one cannot use its parent's."""
    with _opening:
        if os.getpid() not in _pools:
            _pools[os.getpid()] = pool = ProgramPool.open()
            # For processes of multiprocessing, which end without atexit; it calls both for others.
            multiprocessing.util.Finalize(pool, pool.close, exitpriority=10)
        return _pools[os.getpid()]
