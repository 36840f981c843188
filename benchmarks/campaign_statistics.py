"""The leaderboard and the report of 10,000 runs: how long they take, and how much memory.

python -m benchmarks.campaign_statistics [--runs 10000] [--examples 200]
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from agent2rl.analysis.campaigns.run_digest import RunDigest, RunSpending, ScoredPoint
from agent2rl.record.paths import RunPaths
from agent2rl.report import digests

TASKS, AGENTS, DRIVERS, MODES = 6, 5, 5, ("free", "sft-only", "rl-oriented", "multi")
POINTS = 10


def made(number: int, examples: int) -> RunDigest:
    random = np.random.default_rng(number)
    task, agent, driver, mode = (number // step % size for step, size in ((1, 6), (6, 5), (30, 5), (150, 4)))
    gain = float(random.normal(agent, 5))
    differences = np.clip(np.round(random.normal(gain / 100, 0.4, examples)), -1, 1)
    spent = np.sort(random.random((POINTS, 5)), axis=0)
    best = np.maximum.accumulate(np.append(0.0, random.normal(gain, 3, POINTS - 1)))
    curve = tuple(
        ScoredPoint(spent=_spent(spent[place]), submissions=place + 1, best=round(float(best[place]), 6))
        for place in range(POINTS)
    )
    return RunDigest(
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
        contaminated=False,
    )


def _spent(shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> RunSpending:
    seconds, tokens, usd, gpu, steps = (float(share) for share in shares)
    return RunSpending(
        seconds=round(3600 * seconds, 3),
        tokens=round(1e6 * tokens),
        usd=round(20 * usd, 6),
        gpu_seconds=round(3000 * gpu, 3),
        environment_steps=round(1e4 * steps),
    )


def lay(runs: Path, count: int, examples: int) -> None:
    """Run directories, as far as a report of many looks into them."""
    for number in range(count):
        paths = RunPaths(runs / f"run-{number:06d}")
        paths.report.mkdir(parents=True)
        paths.spec.write_text("{}")
        paths.ledger_head.write_text("1 head\n")
        digests.cache_digest(paths, made(number, examples), paths.digest)


def measured(name: str, *command: str) -> float:
    """CPU seconds of a program of its own; prints them with its wall time and the most memory that it had."""
    began = time.monotonic()
    child = os.spawnv(os.P_NOWAIT, command[0], command)
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    print(
        f"| {name} | {seconds:.1f} | {time.monotonic() - began:.1f} | {used.ru_maxrss / 1024:.0f} |",
        flush=True,
    )
    if status:
        raise SystemExit(f"{name} failed")
    return seconds


RIVAL = """
import json, pathlib, sys
[json.loads(path.read_bytes()) for path in pathlib.Path(sys.argv[1]).glob("*/report/*")]
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=200)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs, program = Path(folder) / "runs", [sys.executable, "-m", "agent2rl.cli.main"]
        lay(runs, settings.runs, settings.examples)
        print("| what | CPU seconds | wall seconds | peak MB |\n|---|--:|--:|--:|")
        rival = measured("reading the digests as JSON, nothing else", sys.executable, "-c", RIVAL, str(runs))
        board = measured("leaderboard", *program, "leaderboard", str(runs), "-o", f"{folder}/board.txt")
        report = measured(
            "campaign report", *program, "campaign", "report", str(runs), "-o", f"{folder}/report"
        )
        print(f"\nleaderboard {board / rival:.1f}, report {report / rival:.1f} times the reading as JSON")


if __name__ == "__main__":
    main()
