"""Trackers mirror the run directory: while a run goes, later, again, and without being in its way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent2rl.analysis.recorded_run import read_recorded_run
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.trackers import mirror
from agent2rl.trackers.mirror import make_rows, sanitize_name
from tests.helpers.run_launcher import FinishedRun, RunLauncher
from tests.helpers.small_campaigns import read_campaign_status, write_campaign

ROOT = Path(__file__).resolve().parents[2]
AGENT = """
for step in range(5):
    print(json.dumps({"step": step, "loss": 2.0 / (step + 1)}), flush=True)
say(secrets=[name for name in os.environ if name.startswith("WANDB")])
submit(trained("a", problems=20))
submit(OUTPUT / "nothing")
while not (WORKSPACE / "go").exists():
    time.sleep(0.05)
"""


def lines(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def told_rows(folder: Path) -> list[dict[str, Any]]:
    return [line["row"] for line in lines(folder) if "row" in line]


def until(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not seen():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def workspace(launcher: RunLauncher) -> Path:
    (spec,) = launcher.runs.glob("*/spec.json")
    return RunPaths(spec.parent).workspace


def both_are_told(folder: Path) -> bool:
    return folder.is_dir() and {row["step"] for row in told_rows(folder)} == {0, 1, 2}


@pytest.fixture(scope="module")
def tracked(shared_launcher: RunLauncher) -> FinishedRun:
    """A run that three trackers hear of: one that works, one that is down, one that is at first."""
    launcher, home = shared_launcher, shared_launcher.home
    (home / "later").write_text("in the way of a folder")
    names = ("jsonl:out", "tests.trackers.failing_trackers:UNREACHABLE", "jsonl:later")
    options = [part for name in names for part in ("--track", name)]
    script = launcher.script(AGENT)
    process = launcher.start(script, *options, PYTHONPATH=str(ROOT), WANDB_API_KEY="a-secret-of-the-users")
    until(lambda: both_are_told(home / "out"))
    (home / "later").unlink()
    (workspace(launcher) / "go").touch()
    return launcher.finish(process)


def test_each_verdict_is_mirrored_while_the_run_goes_and_the_end_when_it_is_over(
    tracked: FinishedRun, shared_launcher: RunLauncher
) -> None:
    home = shared_launcher.home
    first, *_, end = lines(home / "out")
    assert first["run"]["group"] == "gsm8k-mini"
    assert first["run"]["config"]["budget.wall_seconds"] == 600.0
    assert {"task": "gsm8k-mini", "mode": "free", "level": "1"}.items() <= first["run"]["tags"].items()
    baseline, scored, rejected = (row["values"] for row in told_rows(home / "out"))
    assert tracked.result.baseline
    assert tracked.result.best
    assert tracked.result.best.score
    assert baseline["baseline/score"] == tracked.result.baseline.value
    assert scored["feedback/score"] == scored["feedback/best"] == tracked.result.best.score.value
    assert scored["feedback/low"] < scored["feedback/score"] < scored["feedback/high"]
    assert 0 < scored["spent/wall_seconds"] < rejected["spent/wall_seconds"]
    assert "feedback/score" not in rejected, "a failure is no number"
    assert rejected["verdicts/rejected"] == 1.0
    assert end["last"]["numbers"]["final/improvement"] == tracked.result.improvement
    assert end["last"]["tags"]["ending"] == "completed"
    assert end["last"]["files"] == ["ledger.jsonl", "result.json", "spec.json"], (
        "neither weights nor workspace"
    )


def test_a_tracker_that_is_down_is_told_of_once_and_costs_the_run_nothing(
    tracked: FinishedRun, shared_launcher: RunLauncher
) -> None:
    assert tracked.code == 0
    assert tracked.result.ending == "completed"
    said = [line for line in tracked.errors.splitlines() if "UNREACHABLE" in line]
    assert [line.count("cannot reach http://***@tracker.example") for line in said] == [1, 0]
    assert (
        f"agent2rl track {tracked.result.run_id} --to tests.trackers.failing_trackers:UNREACHABLE" in said[1]
    )
    assert "secret" not in tracked.errors
    assert "what a package says" not in tracked.errors


def test_a_tracker_that_comes_back_hears_of_all_of_it(
    tracked: FinishedRun, shared_launcher: RunLauncher
) -> None:
    assert lines(shared_launcher.home / "later") == lines(shared_launcher.home / "out")


def test_what_trackers_log_in_with_never_reaches_the_agent(tracked: FinishedRun) -> None:
    assert tracked.said["secrets"] == []


def test_a_run_that_is_sent_again_is_not_doubled_and_curves_come_with_the_report(
    tracked: FinishedRun, shared_launcher: RunLauncher
) -> None:
    launcher, out = shared_launcher, shared_launcher.home / "out"
    before = lines(out)
    again = launcher.cli("track", tracked.result.run_id, "--to", "jsonl:out", "--track-group", "other")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip().endswith(f"{tracked.result.run_id}.jsonl")
    assert lines(out) == before
    launcher.report(tracked)
    for _ in range(2):
        assert launcher.cli("track", tracked.result.run_id, "--to", "jsonl:out").returncode == 0
    points = Counter((name, row["step"]) for row in told_rows(out) for name in row["values"])
    assert set(points.values()) == {1}
    assert {step for name, step in points if name == "attempt-1/loss"} == set(range(5))
    assert (out / tracked.result.run_id / "report" / "report.html").is_file()
    down = launcher.cli(
        "track", "latest", "--to", "tests.trackers.failing_trackers:UNREACHABLE", PYTHONPATH=str(ROOT)
    )
    assert down.returncode == 1
    assert "http://***@tracker.example" in down.stderr


def test_texts_of_a_hostile_run_become_plain_names_and_lead_nowhere(
    tracked: FinishedRun, shared_launcher: RunLauncher, tmp_path: Path
) -> None:
    copy = RunPaths(tmp_path / "it's; a 'run'\n..")
    shutil.copytree(tracked.paths.root, copy.root, symlinks=True)
    shared_launcher.cli("report", str(copy.root))
    report = json.loads(copy.report_json.read_text())
    points = [[0, 1.0], [0.5, None], [1e300, 2.0]]
    names = ["../../etc/passwd", "a' OR 1=1", "\x1b[2J", "..", "x" * 9999, "loss", "loss"]
    for number, attempt in enumerate(report["findings"]["attempts"]):
        curves = [{"name": name, "where": "agent.log", "points": points} for name in names]
        attempt["curves"] = [] if number else curves
    copy.report_json.write_text(json.dumps(report))
    (copy.figures / "passwd.svg").symlink_to("/etc/passwd")
    found = [row for row in make_rows(read_recorded_run(copy)) if row.axis != "submission"]
    assert [(row.step, *row.values.values()) for row in found] == [(0, 1.0), (2, 2.0)] * len(names)
    keys = {name for row in found for name in row.values}
    assert len(keys) == len(names)
    assert all(len(key) < 250 and ".." not in key and key.count("/") == 1 for key in keys), keys
    assert mirror.describe_run(read_run(copy)).id == "it_s_a_run"
    files = mirror.describe_end(read_run(copy)).files
    assert "report/figures/scores.svg" in files
    assert "report/figures/passwd.svg" not in files
    assert sanitize_name("..") == sanitize_name("") == "unnamed"


@pytest.mark.thorough
def test_a_run_whose_harness_died_is_mirrored_as_stopped_and_goes_on_as_the_same_run(
    launcher: RunLauncher,
) -> None:
    out = launcher.home / "out"
    process = launcher.start(launcher.script(AGENT), "--track", "jsonl:out")
    until(lambda: both_are_told(out))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: "last" in lines(out)[-1])
    assert lines(out)[-1]["last"]["status"] == "stopped"
    (workspace(launcher) / "go").touch()
    done = launcher.cli("resume", "latest", "--json", "--no-report", "--track", "jsonl:out")
    assert done.returncode == 0, done.stderr
    assert sum("run" in line for line in lines(out)) == 1
    steps = [row["step"] for row in told_rows(out)]
    assert steps == sorted(set(steps))
    assert lines(out)[-1]["last"]["status"] == "finished"


def test_a_tracker_that_hangs_is_given_up_when_the_run_is_over(tracked: FinishedRun) -> None:
    code = "from agent2rl.trackers import follow as it; it.LAST_SECONDS = 0.5; it.main(*it.sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tracked.paths.root), "tests.trackers.failing_trackers:HANGING"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert done.stdout.startswith("no answer in 0 s; send the rest with `agent2rl track ")


def test_a_tracker_that_cannot_work_here_is_refused_before_the_run_begins(launcher: RunLauncher) -> None:
    asked = ("run", "--task", "gsm8k-mini", "--agent", "nop", "--track")
    absent = launcher.cli(*asked, "tests.trackers.failing_trackers:NOT_INSTALLED", PYTHONPATH=str(ROOT))
    unknown = launcher.cli(*asked, "mflow")
    assert (absent.returncode, unknown.returncode) == (2, 2)
    assert "pip install 'agent2rl[nobody_has_this]'" in absent.stderr
    assert "Did you mean 'mlflow'?" in unknown.stderr
    assert not launcher.runs.exists()


@pytest.mark.thorough
def test_a_campaign_tracks_its_runs_under_its_name_and_they_stay_the_same_experiments(
    launcher: RunLauncher,
) -> None:
    file = write_campaign(launcher, ["nop"], more='track = ["jsonl:out"]\n', name="small")
    assert launcher.cli("campaign", "run", file).returncode == 0
    (run,) = [line["run"] for line in lines(launcher.home / "out") if "run" in line]
    assert run["group"] == "small"
    (untracked,) = read_campaign_status(launcher, write_campaign(launcher, ["nop"], name="plain"))
    assert untracked["state"] == "done"
    assert untracked["run_id"] == run["id"]
