"""Small campaigns for tests."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from tests.helpers.run_launcher import RunLauncher

WAIT_SECONDS = 120


def write_campaign(
    launcher: RunLauncher, agents: list[str], seeds: int = 1, more: str = "", name: str = "small"
) -> str:
    """A campaign's file, of runs that take a second or two each."""
    path = launcher.home / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\n[axes]\ntask = ["gsm8k-mini"]\nagent = {json.dumps(agents)}\n'
        f"seed = {list(range(seeds))}\n[settings]\nno-report = true\n{more}",
        encoding="utf-8",
    )
    return str(path)


def read_campaign_status(launcher: RunLauncher, file: str, **environment: str) -> list[dict[str, Any]]:
    done = launcher.cli("campaign", "status", file, "--json", **environment)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return found


def list_run_states(launcher: RunLauncher, file: str) -> list[str]:
    return [run["state"] for run in read_campaign_status(launcher, file)]


def list_runs(launcher: RunLauncher) -> list[RunPaths]:
    return [RunPaths(path.parent) for path in sorted(launcher.runs.glob("*/spec.json"))]


def count_resumed_runs(launcher: RunLauncher) -> int:
    """How many runs were taken up after a crash."""
    chains = (read_run(paths).chain for paths in list_runs(launcher))
    return sum(any(entry.kind == "resumed" for entry in chain.entries) for chain in chains)


@contextmanager
def start_campaign(
    launcher: RunLauncher, *arguments: str, **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """`agent2rl campaign …`, while the test looks at it."""
    process = subprocess.Popen(
        launcher.command("campaign", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=launcher.home,
        env=launcher.environment(**environment),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def has_agent_started(launcher: RunLauncher) -> bool:
    """Whether some run's agent has said something."""
    return any(run.agent_log.exists() and run.agent_log.stat().st_size for run in list_runs(launcher))


def is_process_alive(marker: Path) -> bool:
    """Whether a process whose command line names this path is alive."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(marker).encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False
