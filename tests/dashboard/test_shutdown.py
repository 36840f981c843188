"""However `agent2rl view` is ended, nothing that it started goes on without it."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from agent2rl.record.paths import RunPaths
from tests.dashboard import example_runs
from tests.dashboard.example_runs import FINISHED
from tests.helpers.run_launcher import RunLauncher

PATIENCE_SECONDS = 120.0
"""Until something happens that is expected to: the machine may be busy."""
STARTED = 3
"""The two workers, which analyse runs and the one that is looked at, and Python's tracker of resources."""


def read_parents() -> dict[tuple[int, str], int]:
    """The parent of each living process, by its number and when it was started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *rest = stat.read_text().rpartition(")")[2].split()
            if state not in "ZX":
                parents[int(stat.parent.name), rest[17]] = int(parent)
    return parents


def find_descendants(root: int) -> set[tuple[int, str]]:
    parents = read_parents()
    found: set[tuple[int, str]] = set()
    ancestors = {root}
    while children := {each for each, parent in parents.items() if parent in ancestors} - found:
        found |= children
        ancestors = {pid for pid, _ in children}
    return found


@contextmanager
def viewing(runs: Path, cache: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The real command, and its address."""
    launcher = RunLauncher(runs, cache, runs)
    command = launcher.command("view", str(runs), "--no-browser")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=launcher.environment()) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, marks=pytest.mark.thorough),
        signal.SIGKILL,
    ],
)
def test_no_worker_outlives_the_dashboard(ending: signal.Signals, finished: RunPaths, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    example_runs.copy_run_as(finished, runs, FINISHED)
    with viewing(runs, tmp_path / "cache") as (process, url):
        deadline = time.monotonic() + PATIENCE_SECONDS
        assert httpx.get(f"{url}runs/{FINISHED}", timeout=PATIENCE_SECONDS).status_code == 200
        while len(started := find_descendants(process.pid)) < STARTED:
            assert time.monotonic() < deadline, started
            time.sleep(0.05)

        process.send_signal(ending)
        code = process.wait(PATIENCE_SECONDS)
        assert code == (-signal.SIGKILL if ending is signal.SIGKILL else 0)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := started & read_parents().keys():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
