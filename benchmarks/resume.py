"""Kills the harness of small runs at random points, resumes it each time, and says what does not hold then.

    .venv/bin/python -m benchmarks.resume --kills 200

A run is killed a few times after random times and then ends; `tests/helpers/crashing_runs.py` says what is
checked. Some kills come when there is no run directory yet: then the run is begun anew, and they are counted
apart.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from tests.helpers.crashing_runs import CrashingRun, find_resume_faults
from tests.helpers.run_launcher import RunLauncher

MOST_OF_A_RUN = 12
SHARE = 0.5
"""Of the time of a whole run, that a harness lives at most: later ones go on where earlier ones ended."""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kills", type=int, default=200)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--sandbox", default="bubblewrap")
    asked.add_argument("--keep", type=Path, help="Where runs with a fault are kept.")
    told = asked.parse_args()
    chance = random.Random(told.seed)
    began = time.monotonic()
    kills = early = runs = bad = 0
    where: Counter[str] = Counter()
    off: list[float] = []
    with tempfile.TemporaryDirectory(prefix="agent2rl-resume-") as folder:
        place = Path(folder)
        span = _whole(place, told.sandbox)
        print(f"an undisturbed run takes {span:.1f} s", flush=True)
        while kills < told.kills:
            runs += 1
            dying = _bench(place, f"run-{runs}", told.sandbox)
            deaths, born = 0, time.monotonic()
            most = chance.randint(1, MOST_OF_A_RUN)
            while deaths < most and dying.live(chance.uniform(0.0, SHARE * span)) == -signal.SIGKILL:
                deaths += dying.begun
                early += not dying.begun
                where.update([_last(dying)] if dying.begun else [])
            if not (dying.begun and dying.paths.result.exists()):
                dying.live()
            span = (span + time.monotonic() - born) / 2  # a machine is now busier, now idler
            found = list(find_resume_faults(dying, deaths))
            kills += deaths
            off += dying.unsure
            if found:
                bad += 1
                print(f"run {runs}, killed {deaths} times: {'; '.join(found)}\n{dying.errors}", flush=True)
                if told.keep:
                    shutil.copytree(dying.launcher.home.parent, told.keep / f"run-{runs}", symlinks=True)
            elif not runs % 10:
                print(f"{runs} runs, {kills} kills, {bad} with faults", flush=True)
            shutil.rmtree(dying.launcher.home.parent)
    print(f"{kills} kills in {runs} runs ({early} more before there was a run): {bad} runs with faults")
    print(f"the agent's used time was off by {median(off):.2f} s (median), {max(off):.2f} s at most")
    print(f"last record before the kill: {', '.join(f'{kind} {n}' for kind, n in where.most_common())}")
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(1 if bad else 0)


def _bench(place: Path, name: str, sandbox: str) -> CrashingRun:
    home = place / name / "home"
    home.mkdir(parents=True)
    return CrashingRun(RunLauncher(place / name / "runs", place / "cache", home), ("--sandbox", sandbox))


def _whole(place: Path, sandbox: str) -> float:
    """How long a run takes that nobody kills, once the cache is filled."""
    for name in ("first", "second"):
        began = time.monotonic()
        dying = _bench(place, name, sandbox)
        dying.live()
        assert not list(find_resume_faults(dying, 0)), dying.errors
    return time.monotonic() - began


def _last(dying: CrashingRun) -> str:
    entries = dying.entries
    return entries[-1].kind if entries else "nothing"


if __name__ == "__main__":
    main()
