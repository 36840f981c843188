"""How long the report of a long run takes: 100,000 events and 50 submissions.

    python -m benchmarks.report [--events 100000] [--submissions 50]

A small real run is made, and its record stretched: events of every kind over twelve hours, and its first
submission again and again. The rival is the least that any report must do: reading the same events as JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent2rl.analysis.analyse import analyse_run
from agent2rl.analysis.recorded_run import read_recorded_run
from agent2rl.record.paths import RunPaths
from agent2rl.report import run_report

HOURS = 12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--submissions", type=int, default=50)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = _run(Path(folder))
        _stretch(paths, asked.events, asked.submissions)
        began = time.perf_counter()
        lines = [json.loads(line) for line in paths.events.read_bytes().splitlines()]
        plain = time.perf_counter() - began
        size = paths.events.stat().st_size / 1e6
        print(f"{len(lines):,} events ({size:.1f} MB), read as JSON alone: {plain:.2f} s")
        began = time.perf_counter()
        record = read_recorded_run(paths)
        read = time.perf_counter() - began
        findings, _ = analyse_run(record)
        analysed = time.perf_counter() - began
        many = len(findings.attempts)
        print(f"read and checked {read:.2f} s, analysed {analysed - read:.2f} s, {many} attempts")
        began = time.perf_counter()
        run_report.write_report(paths)
        whole = time.perf_counter() - began
        print(f"whole report {whole:.2f} s ({whole / plain:.0f}x the reading alone; the aim is under 10 s)")
        for name in (paths.report_json, paths.report_page):
            print(f"  {name.name} {name.stat().st_size / 1e6:.1f} MB")
        command = [sys.executable, "-m", "agent2rl.cli.main", "report", str(paths.root)]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"`agent2rl report` from the command line {time.perf_counter() - began:.2f} s")


def _run(folder: Path) -> RunPaths:
    asked = ["run", "--task", "gsm8k-mini", "--agent", "script", "--no-report", "--runs-dir", str(folder)]
    command = [sys.executable, "-m", "agent2rl.cli.main", *asked]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (spec,) = folder.glob("*/spec.json")
    return RunPaths(spec.parent)


def _stretch(paths: RunPaths, events: int, submissions: int) -> None:
    """More of everything, over the whole time. The ledger no longer fits, which the report says."""
    lines = [json.loads(line) for line in paths.events.read_text().splitlines()]
    start = next(line["time"] for line in lines if line["kind"] == "started")
    last = next(line for line in lines if line["kind"] == "revision_of")
    extra = []
    apart = HOURS * 3600 / events
    for number in range(events - len(lines)):
        at, before = start + apart * number, start + apart * (number - 1)
        extra.append({"time": at, **_event(number, at, before)})
    first = json.loads(paths.submission_paths(1).record.read_text())
    for number in range(10, 10 + submissions):
        where = paths.submission_paths(number)
        where.root.mkdir()
        at = start + HOURS * 3600 * number / (submissions + 10)
        where.record.write_text(json.dumps({**first, "id": number, "accepted_at": at}))
        where.results_file("feedback").write_bytes(
            paths.submission_paths(1).results_file("feedback").read_bytes()
        )
        extra.append({**last, "time": at, "data": {**last["data"], "submission": number}})
    ended = [line for line in lines if line["kind"] in ("ended", "closed")]
    for line in ended:
        line["time"] = start + HOURS * 3600
    every = sorted([*lines, *extra], key=lambda line: line["time"])
    paths.events.write_text("".join(json.dumps(line) + "\n" for line in every))
    paths.usage.write_text("".join(_usage(start, number) for number in range(5000)))


def _event(number: int, at: float, before: float) -> dict[str, object]:
    match number % 8:
        case 0:
            return {"kind": "sample", "data": _sample(number)}
        case 1:
            command = f"python code/train.py --rate {number % 50}e-5"
            began = {"pid": number, "began": at, "parent": 1, "name": "python", "command": command}
            return {"kind": "began", "data": began}
        case 2:
            used = {"seconds": 9.0, "cpu_seconds": 8.0, "peak_bytes": 10**8}
            return {"kind": "left", "data": {"pid": number - 1, "began": before, **used}}
        case 3:
            played = {"source": "served", "episodes": 2, "steps": 40, "successes": 1}
            return {"kind": "rollouts", "data": played}
        case 4:
            file = {"path": f"output/v{number % 500}", "what": "weights", "bytes": 10**8, "changed": at}
            return {"kind": "file", "data": file}
        case 5:
            tool = {"at": at, "name": "bash", "shown": "ls -l output", "failed": False}
            return {"kind": "tool", "data": tool}
        case _:
            asked = {"began": at, "seconds": 2.0, "outcome": "answered", "input": 9000, "output": 300}
            return {"kind": "request", "data": asked}


def _sample(number: int) -> dict[str, object]:
    gpus = [{"index": 0, "busy": (number % 100) / 100, "memory_bytes": 10**10}]
    return {"seconds": 3.0, "cores": number % 3, "resident_bytes": 10**9, "processes": 4, "gpus": gpus}


def _usage(start: float, number: int) -> str:
    tokens = {"input": 9000, "output": 300}
    told = {"wire": "anthropic", "model": "m", "path": "/v1/messages", "stream": True, "status": 200}
    at = start + 8.0 * number
    return (
        json.dumps({"at": at, "outcome": "answered", "seconds": 2.0, "tokens": tokens, "usd": 0.01, **told})
        + "\n"
    )


if __name__ == "__main__":
    main()
