"""What a grading spends before its first answer: what an engine that stays warm could save of it.

    python -m benchmarks.engine_start [--engine transformers] [--model DIR]

Starts a grading's process anew three times and prints the medians, in seconds of wall time and of CPU time:

    the process    Python, and the modules of the grading worker
    the engine     its modules: torch, transformers, vLLM
    the model      its weights are opened, and the engine is built around them
    the answers    100 greedy answers to the questions of `gsm8k-mini`

A process that stays saves the first two. The third is new for each submission. Figures:
docs/design/submission-overhead.md.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from agent2rl import registry
from agent2rl.core.engine import ChatMessage, Sampling
from agent2rl.models.seedling import FILES

TIMES, ANSWERS, TOKENS = 3, 100, 64
START = "import agent2rl.grading.worker, resource; print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))"
Cost = tuple[float, float]
"""Seconds of wall time and of CPU time."""


@contextmanager
def measure(costs: dict[str, Cost], name: str) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    costs[name] = (time.perf_counter() - wall, time.process_time() - cpu)


def measure_process() -> Cost:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    return time.perf_counter() - begin, float(done.stdout)


def measure_engine(engine: str, model: Path) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    questions = registry.find_task("gsm8k-mini").load(None).feedback[:ANSWERS]
    importlib.import_module("agent2rl.grading.worker")
    with measure(costs, "the engine"):
        open_engine = registry.find_engine(engine)
    with measure(costs, "the model"):
        opened = open_engine(model)
    with opened, measure(costs, "the answers"):
        opened.generate([(ChatMessage("user", question.prompt),) for question in questions], Sampling(TOKENS))
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--model", type=Path, default=FILES)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure_engine(options.engine, options.model)))
        return
    runs: list[dict[str, Cost]] = []
    for _ in range(TIMES):
        again = [sys.executable, "-m", "benchmarks.engine_start", "--once", "--engine", options.engine]
        done = subprocess.run(
            [*again, "--model", options.model], stdout=subprocess.PIPE, text=True, check=True
        )
        runs.append({"the process": measure_process(), **json.loads(done.stdout.splitlines()[-1])})
    for name in runs[0]:
        wall, cpu = (median(run[name][which] for run in runs) for which in (0, 1))
        print(f"{name:12}  {wall:7.2f} s  {cpu:7.2f} s of CPU")


if __name__ == "__main__":
    main()
