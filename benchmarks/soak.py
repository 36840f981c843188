"""A long run in a short time: do the harness's memory, descriptors and kept weights stay as they are?

    python -m benchmarks.soak [--hours 12] [--speed 60] [--submissions 500] [--keep best] [--sandbox auto]

A real run: `agent2rl run` with a sandbox, the gateway, a scripted driver and grading children, on small
models. The agent (`soak_agent`) does in HOURS / SPEED what an agent does in HOURS, and the harness looks at
it SPEED times as often as usual. Meanwhile this program reads the harness's memory, descriptors, threads and
child processes from /proc, and counts the weights that the run directory holds. The exit status is 1 if a
promise does not hold: memory within a tenth of what it is after a tenth of the submissions, no more
descriptors than then, and no more weights than `--keep` says. Figures: docs/design/long-runs.md.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from agent2rl.cli import main as cli
from agent2rl.core.agent import Agent, Brief
from agent2rl.core.grading_records import Submission
from agent2rl.core.records import RunResult
from agent2rl.core.sandbox import Command, Mount
from agent2rl.fake_llm.script_file import parse_script
from agent2rl.fake_llm.server import run_in_thread
from agent2rl.record.ledger import read_ledger
from agent2rl.record.paths import RunPaths
from agent2rl.run import agent_observer

PLAN = "SOAK_PLAN"
"""The variable of the harness with the agent's arguments: hours, speed, submissions."""
UNDER_WAY = 2
"""Submissions of the agent that have no verdict yet, at most."""
ROWS = 12
SAMPLE_SECONDS = 2.0
TOLERANCE = 0.1
SPARE_DESCRIPTORS = 2 * UNDER_WAY + 8
"""Connections and files that are open for a moment."""


@dataclass(frozen=True)
class SoakAgent:
    secrets: tuple[str, ...] = ()

    def command(self, brief: Brief) -> Command:
        source, target = Path(__file__).with_name("soak_agent.py"), "agent/soak_agent.py"
        program = (brief.agent2rl_python, str(brief.workspace / target), *os.environ[PLAN].split())
        return Command(program, brief.environment, (Mount(source, target),))


AGENT: Agent = SoakAgent()


def run_harness(speed: float, arguments: Sequence[str]) -> None:
    """Run a command of agent2rl that looks at its agent so many times as often as usual."""
    for name in ("SAMPLE_SECONDS", "POLL_SECONDS", "GPU_SECONDS", "FILE_SECONDS"):
        setattr(agent_observer, name, getattr(agent_observer, name) / speed)
    sys.argv[1:] = arguments
    cli.main()


# What the harness has and holds.


@dataclass(frozen=True)
class HarnessSample:
    seconds: float
    submissions: int
    resident_bytes: int
    anonymous_bytes: int
    descriptors: int
    threads: int
    children: int
    kept_copies: int
    weights_bytes: int
    record_bytes: int
    """All files of the run directory but weights and the agent's workspace."""


def read_sample(pid: int, run: Path, seconds: float) -> HarnessSample:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    submissions = RunPaths(run).submissions
    count = sum(1 for _ in submissions.iterdir()) if submissions.is_dir() else 0
    copies = list(submissions.glob("*/model"))
    weights = sum(count_bytes(copy) for copy in copies)
    outside = sum(count_bytes(path) for path in run.iterdir() if path.name not in ("workspace", "scratch"))
    return HarnessSample(
        seconds=seconds,
        submissions=count,
        resident_bytes=_read_kilobytes(status["VmRSS"]),
        anonymous_bytes=_read_kilobytes(status["RssAnon"]),
        descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        threads=int(status["Threads"]),
        children=len(children),
        kept_copies=len(copies),
        weights_bytes=weights,
        record_bytes=outside - weights,
    )


def _read_kilobytes(text: str) -> int:
    return 1024 * int(text.removesuffix("kB"))


def count_bytes(path: Path) -> int:
    """Return the size of a file or a tree, of which parts may disappear meanwhile."""
    try:
        if not path.is_dir():
            return path.lstat().st_size
        return sum(count_bytes(each) for each in path.iterdir())
    except FileNotFoundError:
        return 0


def watch_harness(process: subprocess.Popen[str], runs: Path) -> Iterator[HarnessSample]:
    """Yield samples while the agent works: from the first submission until the record says that it ended."""
    begin = time.monotonic()
    while process.poll() is None:
        time.sleep(SAMPLE_SECONDS)
        run = next((path for path in runs.glob("*") if path.is_dir()), None)
        if run is None or not RunPaths(run).submissions.is_dir():
            continue
        if _has_ended(RunPaths(run)):
            return
        try:
            yield read_sample(process.pid, run, time.monotonic() - begin)
        except (FileNotFoundError, ProcessLookupError):
            continue


def _has_ended(paths: RunPaths) -> bool:
    with paths.ledger.open("rb") as ledger:
        ledger.seek(max(0, paths.ledger.stat().st_size - 20_000))
        return b'"kind":"ended"' in ledger.read()


# The figures.


def print_samples(samples: Sequence[HarnessSample]) -> None:
    print("submissions  minutes  memory MB  of it own  descriptors  threads  children  copies  record MB")
    marks = [round(at * (len(samples) - 1) / (ROWS - 1)) for at in range(ROWS)]
    for sample in (samples[mark] for mark in sorted(set(marks))):
        print(
            f"{sample.submissions:11}  {sample.seconds / 60:7.1f}  {sample.resident_bytes / 1e6:9.1f}"
            f"  {sample.anonymous_bytes / 1e6:9.1f}  {sample.descriptors:11}  {sample.threads:7}"
            f"  {sample.children:8}  {sample.kept_copies:6}  {sample.record_bytes / 1e6:9.2f}"
        )


def find_broken_promises(samples: Sequence[HarnessSample], keep: str) -> Iterator[str]:
    """Compare the samples after a tenth of the submissions with those around it, and print the figures."""
    most = samples[-1].submissions if samples else 0
    early = [each for each in samples if 0.05 * most <= each.submissions <= 0.15 * most]
    late = [each for each in samples if each.submissions > 0.15 * most]
    if not early or not late:
        yield "there are too few samples to compare"
        return
    if not _is_memory_flat(early, late):
        yield "the memory is not flat"
    if not _is_descriptor_count_flat(early, late):
        yield "the number of descriptors grows"
    bound = most if keep == "all" else 1 + UNDER_WAY
    copies = max(each.kept_copies for each in samples)
    weights = max(each.weights_bytes for each in samples)
    print(f"copies of weights at once: at most {copies} ({weights / 1e6:.2f} MB); promised: at most {bound}")
    if copies > bound:
        yield "more weights are kept than promised"


def _is_memory_flat(early: Sequence[HarnessSample], late: Sequence[HarnessSample]) -> bool:
    reference = median(each.resident_bytes for each in early)
    extremes = min(each.resident_bytes for each in late), max(each.resident_bytes for each in late)
    least, most = (extreme / reference - 1 for extreme in extremes)
    print(f"memory after a tenth: {reference / 1e6:.1f} MB; then from {least:+.1%} to {most:+.1%}")
    return least >= -TOLERANCE and most <= TOLERANCE


def _is_descriptor_count_flat(early: Sequence[HarnessSample], late: Sequence[HarnessSample]) -> bool:
    first, most = (max(each.descriptors for each in samples) for samples in (early, late))
    print(f"descriptors after a tenth: at most {first}; then at most {most}")
    return most <= first + SPARE_DESCRIPTORS


def print_run(paths: RunPaths, result: RunResult) -> None:
    entries = read_ledger(paths.ledger, paths.ledger_head).entries
    graded = [Submission.model_validate(each.data["submission"]) for each in entries if each.kind == "graded"]
    verdicts = dict(Counter(str(each.verdict) for each in graded))
    dropped = sum(each.kind == "dropped" for each in entries)
    events = paths.events.read_bytes().count(b"\n")
    log = paths.agent_log.stat().st_size
    print(f"ending: {result.ending}; verdicts: {verdicts}; {dropped} copies dropped later")
    print(f"{events:,} events, {len(entries):,} ledger entries, {log / 1e6:.2f} MB of the agent's log")
    tenth = max(1, len(graded) // 10)
    for name, part in (("first", graded[:tenth]), ("last", graded[-tenth:])):
        freeze = median(each.freeze_seconds or 0.0 for each in part)
        grading = median(each.grading_seconds or 0.0 for each in part)
        print(f"{name} tenth of the submissions, median: freeze {freeze:.3f} s, grading {grading:.2f} s")
    print(f"weights left: {sum(1 for _ in paths.submissions.glob('*/model'))} copies")


def measure_command(name: str, *arguments: str) -> bool:
    """Run a command, print its time and peak memory, and return whether it succeeded."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "agent2rl.cli.main", *arguments], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, peak = time.monotonic() - begin, 1024 * usage.ru_maxrss
    print(f"agent2rl {name}: {seconds:.1f} s, at most {peak / 1e6:.0f} MB, exit status {process.returncode}")
    return process.returncode == 0


# The run.


def soak(options: argparse.Namespace, home: Path) -> list[str]:
    """Do the run, print its figures, and return the promises that do not hold."""
    with run_in_thread(parse_script('[[step]]\nsay = "Go on."\n')) as url:
        process = start_harness(options, home, url)
        try:
            samples = list(watch_harness(process, home / "runs"))
            output, _ = process.communicate()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()
    result = RunResult.model_validate_json(output)
    paths = RunPaths(home / "runs" / result.run_id)
    print_samples(samples)
    broken = list(find_broken_promises(samples, options.keep))
    print_run(paths, result)
    if result.ending != "completed":
        broken.append(f"the run ended otherwise: {result.ending} {result.reason}")
    left = sum(1 for _ in paths.submissions.glob("*/model"))
    if options.keep != "all" and left > (options.keep == "best"):
        broken.append("weights are left that the run does not keep")
    for name in ("verify", "report"):
        if not measure_command(name, name, str(paths.root)):
            broken.append(f"agent2rl {name} failed")
    return broken


def start_harness(options: argparse.Namespace, home: Path, driver_url: str) -> subprocess.Popen[str]:
    seconds = 3600 * options.hours / options.speed
    arguments = ["run", "--task", "gsm8k-mini", "--agent", "benchmarks.soak:AGENT", "--json", "--no-report"]
    arguments += ["--driver", f"scripted-1@{driver_url}", "--continues", "0", "--keep", options.keep]
    arguments += ["--sandbox", options.sandbox, "--budget", f"{options.patience * seconds:.0f}s"]
    code = f"from benchmarks.soak import run_harness; run_harness({options.speed}, {arguments!r})"
    environment = {
        **os.environ,
        "AGENT2RL_RUNS": str(home / "runs"),
        "AGENT2RL_CACHE": str(home / "cache"),
        PLAN: f"{options.hours} {options.speed} {options.submissions}",
    }
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=float, default=12)
    parser.add_argument("--speed", type=float, default=60)
    parser.add_argument("--submissions", type=int, default=500)
    parser.add_argument("--keep", choices=("best", "all", "none"), default="best")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument(
        "--patience", type=float, default=4, help="times the planned time that the run may take"
    )
    parser.add_argument(
        "--directory", type=Path, help="a folder in which the run directory is made, and stays"
    )
    options = parser.parse_args()
    if options.directory:
        options.directory.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="soak-", dir=options.directory))
    try:
        broken = soak(options, home)
    finally:
        if options.directory is None:
            shutil.rmtree(home, ignore_errors=True)
    for promise in broken:
        print(f"BROKEN: {promise}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
