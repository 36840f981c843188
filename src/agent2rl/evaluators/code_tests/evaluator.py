"""Asks a model for functions and scores what they do: 1 where all tests pass, else 0.

Where a problem's data is not plain (its reference solution takes or returns what cannot cross the line), its
tests run where the program runs, and the verdict is marked: such a one could be forged. Which problems these
are, the reference decides and never the program: one that returns what its reference would not has failed.

`extract_program` finds the program in an answer by textual rules alone: this runs outside the sandbox, and
the text is never parsed.
"""

import hashlib
import multiprocessing.util
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from agent2rl.core.engine import Chat, Engine
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import EvalResult, EvalSettings, SampledAnswer
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests.pool import ProgramJob, ProgramPool, ProgramVerdict
from agent2rl.evaluators.single_turn import EvaluationProgress, QuestionPrompt, compute_pass_metrics

# The program in a model's answer, whichever way it was given: a function's rest, or the whole of it,
# fenced or not.

FENCE = re.compile(r"^[ \t]{0,8}```[^\n]*\n(.*?)(?:^[ \t]{0,8}```|\Z)", re.MULTILINE | re.DOTALL)
LONGEST = 1 << 16
"""Characters of an answer that are looked at: a token can be as long as its tokenizer likes."""
ASSIGNMENT = r"[A-Za-z_]\w{0,99}(?: ?:[^=\n]{1,200}| {0,8})=(?!=)"
START = rf"async def |def |class |import [\w.]|from [\w.]+ import |@\w|{ASSIGNMENT}"
FIRST_CODE = re.compile(rf"^(?:{START})", re.MULTILINE)
CODE_AT_THE_MARGIN = re.compile(rf"(?:{START}|#|[)\]}}])")
QUOTES = re.compile(r'"""|\'\'\'')


def extract_program(prompt: str, entry: str, answer: str) -> str:
    """The prompt's function as the answer has it."""
    answer = answer[:LONGEST]
    defined = re.compile(rf"^(?:async )?def {re.escape(entry)}\b", re.MULTILINE)
    before = next((prompt[: found.start()] for found in defined.finditer(prompt)), "")
    for block in [match[1] for match in FENCE.finditer(answer)]:
        if defined.search(block):
            return before + block
    if (found := defined.search(answer)) is not None:
        first = FIRST_CODE.search(answer)
        start = min(found.start(), first.start() if first else found.start())
        return before + _cut_after_code(answer[start:])
    return prompt + _cut_after_code(_extract_body(answer))


def _extract_body(answer: str) -> str:
    """A function's rest: as it stands, or in a block after some words."""
    block = FENCE.search(answer)
    if block and block[1].strip() and not answer[: block.start()].startswith((" ", "\t", "\n")):
        return block[1]
    return answer


def _cut_after_code(text: str) -> str:
    """The text as far as it is code."""
    return "".join(_iter_code_lines(text))


def _iter_code_lines(text: str) -> Iterator[str]:
    quote = ""  # the kind of quotation marks of the string that goes on from the line before
    for line in text.splitlines(keepends=True):
        at_margin = line[:1].strip() != ""
        if at_margin and not quote and not CODE_AT_THE_MARGIN.match(line):
            return
        yield line
        for mark in QUOTES.findall(line):
            quote = mark if not quote else "" if mark == quote else quote


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
