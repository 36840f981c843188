"""What isolation costs, each as a ratio against doing without it, measured in the same run.

    freeze    copying and hashing a submission     against coreutils: cp -r, then sha256sum
    start     a command in the bubblewrap sandbox  against the same command by subprocess

Run it on a quiet machine: .venv/bin/python -m benchmarks.isolation
"""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from statistics import median

from agent2rl import registry
from agent2rl.core.records import Limits
from agent2rl.core.sandbox import Command, Enclosure
from agent2rl.grading.freeze import FreezeLimits, freeze_submission

ROUNDS = 7
MEGABYTES = 512


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def compare(name: str, ours: Callable[[], object], rival: Callable[[], object]) -> None:
    """Alternate, so that a noisy machine is noisy to both; medians."""
    times = [(seconds(ours), seconds(rival)) for _ in range(ROUNDS)]
    mine, theirs = (median(column) for column in zip(*times, strict=True))
    print(f"{name}: {1000 * mine:.0f} ms against {1000 * theirs:.0f} ms, ratio {mine / theirs:.2f}")


def freezing(home: Path) -> None:
    model = home / "workspace" / "model"
    model.mkdir(parents=True)
    for shard in range(4):
        (model / f"{shard}.safetensors").write_bytes(os.urandom(1 << 20) * (MEGABYTES // 4))
    target = home / "copy"

    def ours() -> None:
        freeze_submission(home / "workspace", PurePosixPath("model"), target, FreezeLimits())
        shutil.rmtree(target)

    def rival() -> None:
        subprocess.run(["cp", "-r", model, target], check=True)
        subprocess.run(["sha256sum", *target.iterdir()], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(target)

    compare(f"freeze {MEGABYTES} MB, against cp + sha256sum", ours, rival)


def starting(home: Path) -> None:
    sandbox = registry.find_sandbox("bubblewrap")
    (home / "work").mkdir()
    enclosure = Enclosure(
        role="agent",
        workspace=home / "work",
        scratch=home / "scratch",
        log=home / "log",
        wall_seconds=60,
        limits=Limits(memory_bytes=1 << 32, disk_bytes=1 << 32, processes=100),
    )
    compare(
        "start /bin/true in the sandbox, against subprocess",
        lambda: sandbox.run(Command(("true",)), enclosure, threading.Event()),
        lambda: subprocess.run(["true"], check=True),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        freezing(Path(directory))
        starting(Path(directory))
