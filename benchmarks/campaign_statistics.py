"""All statistics of a campaign of 10,000 runs: how long they take, and how much memory.

python -m benchmarks.campaign_statistics [--runs 10000] [--examples 200]
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from agent2rl.analysis.campaigns.cells import cells
from agent2rl.analysis.campaigns.comparisons import compare
from agent2rl.analysis.campaigns.digest import Digest, Point, group_by
from agent2rl.analysis.campaigns.heatmap import heatmap
from agent2rl.analysis.campaigns.passk import best_of
from agent2rl.analysis.campaigns.ranking import rank
from agent2rl.analysis.campaigns.scaling import scalings
from agent2rl.analysis.campaigns.shares import route_shares
from agent2rl.analysis.campaigns.spending import Spent

TASKS, AGENTS, DRIVERS, MODES = 6, 5, 5, ("free", "sft-only", "rl-only", "multi")
POINTS = 10


def made(number: int, examples: int) -> Digest:
    random = np.random.default_rng(number)
    task, agent, driver, mode = (number // step % size for step, size in ((1, 6), (6, 5), (30, 5), (150, 4)))
    gain = float(random.normal(agent, 5))
    differences = np.clip(np.round(random.normal(gain / 100, 0.4, examples)), -1, 1)
    spent = np.sort(random.random((POINTS, 5)), axis=0)
    best = np.maximum.accumulate(np.append(0.0, random.normal(gain, 3, POINTS - 1)))
    curve = tuple(
        Point(spent=_spent(spent[place]), submissions=place + 1, best=round(float(best[place]), 6))
        for place in range(POINTS)
    )
    return Digest(
        run_id=f"run-{number:06d}",
        task=f"task-{task}",
        agent=f"agent-{agent}",
        driver=f"driver-{driver}",
        model="model",
        mode=MODES[mode],
        protocol="heldout",
        seed=number // 600,
        budget_seconds=3600,
        state="finished",
        ending="completed" if number % 20 else "rate-limited",
        baseline=30.0,
        score=None,
        improvement=100 * float(differences.mean()),
        chosen_gain=float(best[-1]),
        interval=None,
        real=bool(differences.mean() > 0.05),
        p_value=None,
        submissions=POINTS,
        scored=POINTS,
        route="sft" if number % 3 else "sft + policy-gradient",
        total=_spent(np.ones(5)),
        curve=curve,
        differences=tuple(differences.tolist()),
        examples_sha256=f"{task:064x}",
    )


def _spent(shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Spent:
    seconds, tokens, usd, gpu, steps = (float(share) for share in shares)
    return Spent(
        seconds=round(3600 * seconds, 3),
        tokens=round(1e6 * tokens),
        usd=round(20 * usd, 6),
        gpu_seconds=round(3000 * gpu, 3),
        environment_steps=round(1e4 * steps),
    )


def measured(name: str, work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| {name} | {seconds:.2f} | {peak:.0f} |", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=200)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digests.jsonl"
        with file.open("w") as out:
            for number in range(settings.runs):
                out.write(made(number, settings.examples).model_dump_json() + "\n")
        print(f"{settings.runs} runs, {file.stat().st_size / settings.runs:.0f} bytes each\n")
        runs: list[Digest] = []

        def read() -> None:
            with file.open("rb") as lines:
                runs.extend(Digest.model_validate_json(line) for line in lines)

        print("| what | CPU seconds | peak MB |")
        total = measured("read", read)
    by_agent = {key[0]: members for key, members in group_by(runs, ("agent",)).items()}
    steps: dict[str, Callable[[], object]] = {
        "cells: task x agent x driver x mode": lambda: cells(runs, ("task", "agent", "driver", "mode")),
        "one cell of all": lambda: cells(runs, ()),
        "heatmap: mode x task": lambda: heatmap(runs, "mode", "task"),
        "heatmap: driver x task": lambda: heatmap(runs, "driver", "task"),
        "pass@k by task and agent": lambda: [
            best_of(members) for members in group_by(runs, ("task", "agent")).values()
        ],
        "pass@k of all": lambda: best_of(runs),
        "scaling, 6 axes": lambda: scalings(runs),
        "ranking of agents": lambda: rank(by_agent),
        "ranking of agents with drivers": lambda: rank(
            {" ".join(key): members for key, members in group_by(runs, ("agent", "driver")).items()}
        ),
        "25 comparisons of agents": lambda: [
            compare(first, second) for first in by_agent.values() for second in by_agent.values()
        ],
        "routes by task and agent": lambda: route_shares(runs),
    }
    total += sum(measured(name, work) for name, work in steps.items())
    print(f"\n{total:.1f} s of one core in all")


if __name__ == "__main__":
    main()
