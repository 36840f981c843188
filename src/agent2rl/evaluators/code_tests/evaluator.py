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
from agent2rl.core.records import Attempt, EvalResult, EvalSettings, Prompts
from agent2rl.core.task import Example
from agent2rl.evaluators.asking import Asking, passes
from agent2rl.evaluators.code_tests.extraction import program
from agent2rl.evaluators.code_tests.pool import Job, Pool, Verdict
from agent2rl.evaluators.progress import Progress

RULE = "code-tests-1"
"""Changes whenever the same answers could get other verdicts."""


@dataclass(frozen=True)
class CodeTests:
    """For examples whose prompt begins a function and whose meta has `test` and `entry_point`."""

    asking: Asking = field(default_factory=Asking)
    program_workers: int = 8

    @property
    def version(self) -> str:
        return f"{RULE}+{hashlib.sha256(repr(self.asking).encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        answers = self.asking.ask(engine, examples, settings)
        jobs = [job(example, text) for example, text in answers.pairs()]
        with Pool.open() as pool:
            verdicts = judge(pool, jobs)
        judged = zip(answers.pairs(), verdicts, strict=True)
        attempts = [Attempt(output=text, score=float(v.passed), note=v.note) for (_, text), v in judged]
        return answers.scored(attempts, passes, tests_inside=sum(verdict.inside for verdict in verdicts))

    def chat(self, example: Example, templated: bool) -> Chat:
        """What the model is asked."""
        return self.asking.prompt(example, templated)

    def prompted(self, prompts: Prompts) -> Self:
        return replace(self, asking=self.asking.prompted(prompts))


def job(example: Example, answer: str) -> Job:
    """The answer as a program to be judged."""
    entry, test = example.meta.get("entry_point"), example.meta.get("test")
    if not isinstance(entry, str) or not entry.isidentifier() or not isinstance(test, str):
        raise GradingError(f"The example {example.id} has no entry_point and test.", "Mend the task's data.")
    return Job(
        program=program(example.prompt, entry, answer),
        entry=entry,
        reference=example.prompt + example.target,
        test=test,
    )


def judge(pool: Pool, jobs: Sequence[Job]) -> list[Verdict]:
    """A verdict for each; equal jobs are judged once."""
    distinct = list(dict.fromkeys(jobs))
    found = dict(zip(distinct, pool.judge(distinct, Progress(len(distinct), "programs judged")), strict=True))
    if unplain := [one for one in distinct if found[one].unplain]:
        odd = _not_plain(pool, unplain)
        inside = [one for one in unplain if (one.entry, one.reference, one.test) in odd]
        again = pool.judge([replace(one, inside=True) for one in inside])
        found |= dict(zip(inside, again, strict=True))
    return [found[one] for one in jobs]


def _not_plain(pool: Pool, jobs: Sequence[Job]) -> set[tuple[str, str, str]]:
    """Which of these problems have data that is not plain, going by their reference solutions."""
    problems = list(dict.fromkeys((one.entry, one.reference, one.test) for one in jobs))
    verdicts = pool.judge([Job(reference, entry, reference, test) for entry, reference, test in problems])
    return {problem for problem, verdict in zip(problems, verdicts, strict=True) if verdict.unplain}


def reward(prompt: str, answer: str, reference: str, test: str, entry: str) -> float:
    """What one answer is worth, for training: in a pool that stays open as long as the process lives."""
    example = Example("", prompt, reference, {"test": test, "entry_point": entry})
    return float(judge(_open_pool(), [job(example, answer)])[0].passed)


_pools: dict[int, Pool] = {}
_opening = threading.Lock()


def _open_pool() -> Pool:
    """This process's own: a forked one cannot use its parent's."""
    with _opening:
        if os.getpid() not in _pools:
            _pools[os.getpid()] = pool = Pool.open()
            # For processes of multiprocessing, which end without atexit; it calls both for others.
            multiprocessing.util.Finalize(pool, pool.close, exitpriority=10)
        return _pools[os.getpid()]
