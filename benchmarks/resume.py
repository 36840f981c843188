"""Kills the harness of small runs at random points, resumes it each time, and says what does not hold then.

    .venv/bin/python -m benchmarks.resume --kills 1000 --sandbox local

A run is killed after random times until it ends or was killed often enough, and then ends;
`tests/helpers/crashing_runs.py` says what is checked. Some kills come when there is no run directory yet:
then the run is begun anew, and they are counted apart.
"""

import argparse
import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.helpers.crashing_runs import CrashingRun, find_resume_faults
from tests.helpers.run_launcher import RunLauncher

MOST_OF_A_RUN, FEW_OF_A_RUN = 20, 8
"""Kills of one run at most, and below which the harnesses of the next runs live shorter."""
LIFE_SHARE = 0.2
"""Of the time of a whole run, that a harness lives at most, at first."""
LONGER = 1.25
END_SECONDS = 1800.0
"""How long a run may take to end when nobody kills it: machines are busy."""


@dataclass(frozen=True)
class KilledRun:
    number: int
    kills: int
    early: int
    """Kills before there was a run."""
    last_records: Counter[str] = field(default_factory=Counter)
    """Before the kills, by kind."""
    clock_errors: list[float] = field(default_factory=list)
    """Seconds by which the agent's used time was off, at each resume."""
    faults: tuple[str, ...] = ()
    errors: str = ""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kills", type=int, default=200)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--sandbox", default="bubblewrap")
    asked.add_argument("--side-by-side", type=int, default=2, help="Runs at a time.")
    asked.add_argument("--keep", type=Path, help="Where runs with a fault are kept.")
    told = asked.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agent2rl-resume-") as folder:
        runs = []
        for run in kill_runs(Path(folder), told.kills, told.seed, told.sandbox, told.side_by_side, told.keep):
            runs.append(run)
            if run.faults:
                print(f"run {run.number}, killed {run.kills} times: {'; '.join(run.faults)}\n{run.errors}")
            if run.faults or not len(runs) % 10:
                report_runs(runs, time.monotonic() - began)
    sys.exit(report_runs(runs, time.monotonic() - began))


def report_runs(runs: list[KilledRun], seconds: float) -> int:
    """Print the figures of all runs and return the exit code."""
    bad = sum(bool(run.faults) for run in runs)
    kills, early = sum(run.kills for run in runs), sum(run.early for run in runs)
    off = sorted(error for run in runs for error in run.clock_errors)
    where = sum((run.last_records for run in runs), Counter[str]())
    print(f"{kills} kills in {len(runs)} runs ({early} more before there was a run): {bad} runs with faults")
    if off:
        print(f"the agent's used time was off by {median(off):.2f} s (median), {off[-1]:.2f} s at most")
    print(f"last record before the kill: {', '.join(f'{kind} {n}' for kind, n in where.most_common())}")
    print(f"{seconds:.0f} s", flush=True)
    return 1 if bad else 0


def kill_runs(
    place: Path, kills: int, seed: int, sandbox: str, side_by_side: int, keep: Path | None
) -> Iterator[KilledRun]:
    """Yield killed runs, as they end, until there were so many kills."""
    life = LIFE_SHARE * _measure_run(place, sandbox)
    started = done = 0
    spawn = multiprocessing.get_context("spawn")  # a fork server serves one process
    with ProcessPoolExecutor(side_by_side, spawn) as pool:
        going: set[Future[KilledRun]] = set()
        while going or done < kills:
            while len(going) < side_by_side and done < kills:
                started += 1
                going.add(pool.submit(_kill_run, place, started, seed, sandbox, life, keep))
            ended, going = wait(going, return_when=FIRST_COMPLETED)
            for run in (future.result() for future in ended):
                done += run.kills
                if run.kills < FEW_OF_A_RUN:  # a machine is now busier, now idler
                    life /= LONGER
                elif run.kills == MOST_OF_A_RUN:
                    life *= LONGER
                yield run


def _kill_run(place: Path, number: int, seed: int, sandbox: str, life: float, keep: Path | None) -> KilledRun:
    chance = random.Random(f"{seed}:{number}")
    run = _prepare_run(place, f"run-{number}", sandbox)
    kills = early = 0
    last_records: Counter[str] = Counter()
    while kills < MOST_OF_A_RUN and run.live(chance.uniform(0.0, life)) == -signal.SIGKILL:
        kills += run.begun
        early += not run.begun
        if run.begun:
            last_records[_find_last_record(run)] += 1
    if not (run.begun and run.paths.result.exists()):
        run.live(END_SECONDS)
    faults = tuple(find_resume_faults(run, kills))
    if faults and keep:
        shutil.copytree(run.launcher.home.parent, keep / f"run-{number}", symlinks=True)
    shutil.rmtree(run.launcher.home.parent)
    return KilledRun(number, kills, early, last_records, run.unsure, faults, run.errors if faults else "")


def _prepare_run(place: Path, name: str, sandbox: str) -> CrashingRun:
    home = place / name / "home"
    home.mkdir(parents=True)
    return CrashingRun(RunLauncher(place / name / "runs", place / "cache", home), ("--sandbox", sandbox))


def _measure_run(place: Path, sandbox: str) -> float:
    """Return how long a run takes that nobody kills, once the cache is filled."""
    for name in ("first", "second"):
        began = time.monotonic()
        run = _prepare_run(place, name, sandbox)
        run.live(END_SECONDS)
        assert not list(find_resume_faults(run, 0)), run.errors
        seconds = time.monotonic() - began
    print(f"an undisturbed run takes {seconds:.1f} s", flush=True)
    return seconds


def _find_last_record(run: CrashingRun) -> str:
    entries = run.entries
    return entries[-1].kind if entries else "nothing"


if __name__ == "__main__":
    main()
