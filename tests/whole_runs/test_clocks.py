"""Whole runs whose time is counted on the training clock, or whose GPU time is limited."""

import json
import time

import pytest

from agent2rl.core.grading_records import Submission
from agent2rl.core.records import Budget, RunResult, RunSpec
from agent2rl.dashboard.run_status import read_live_status
from agent2rl.grading.verify import verify_run
from agent2rl.record import ledger
from agent2rl.record.crash_recovery import read_resume_state
from agent2rl.record.paths import RunPaths
from agent2rl.record.recorder import Recorder
from agent2rl.record.run_lock import Heartbeat
from tests.helpers.crashing_runs import CrashingRun, CrashPoint
from tests.helpers.run_launcher import RunLauncher

LOCAL = ("--sandbox", "local")


def test_the_training_clock_does_not_count_submissions_and_says_both_times(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
before = call("GET", "/time")
answer = submit(trained("v1"))
say(before=before, after=call("GET", "/time"), verdict=answer["verdict"],
    meta=json.loads((WORKSPACE / "run_meta.json").read_text()),
    instructions=(WORKSPACE / "instructions.md").read_text())
""",
        *LOCAL,
        *("--clock", "training", "--budget", "5m"),
    )
    before, after, meta = run.said["before"], run.said["after"], run.said["meta"]
    assert run.said["verdict"] == "scored"
    assert (after["clock"], after["counts"], after["wall_timeout_s"]) == ("training", ["agent"], 600)
    assert (before["gpu_seconds"], before["gpu_seconds_left"]) == (None, None)
    (submission,) = read_submissions(run.paths)
    held = (submission.freeze_seconds or 0) + (submission.grading_seconds or 0)
    assert after["wall_seconds"] - after["training_seconds"] >= held - 2
    assert after["remaining"] >= 300 - after["training_seconds"] - 1
    assert (meta["clock"], meta["wall_timeout_s"]) == ("training", 600)
    assert meta["training_s"] <= meta["wall_s"]
    assert "The clock stops while a submission of yours" in run.said["instructions"]
    clock = run.result.clock
    assert clock is not None
    assert clock.training is not None
    assert clock.agent - clock.training >= held - 0.1
    assert run.result.spec.clock == "training"
    assert json.loads(run.paths.spec.read_text())["clock"] == "training"
    assert (
        "training: the time of submissions does not count" in launcher.cli("show", run.result.run_id).stdout
    )


def read_submissions(paths: RunPaths) -> list[Submission]:
    return [
        Submission.model_validate_json(paths.submission_paths(int(folder.name)).record.read_bytes())
        for folder in sorted(paths.submissions.iterdir())
    ]


@pytest.mark.thorough
def test_an_agent_that_only_submits_reaches_the_limit_of_wall_time(launcher: RunLauncher) -> None:
    """It submits in the background all the time, so that its training clock almost never runs."""
    run = launcher.run(
        """
for number in range(100):
    if call("GET", "/time")["wall_seconds"] < 8:
        submit(trained(f"v{number}", problems=5 + number, seed=number))
time.sleep(600)
""",
        *LOCAL,
        *("--clock", "training", "--budget", "6s"),
    )
    clock = run.result.clock
    assert run.result.ending == "deadline", run.result.reason
    assert clock is not None
    assert clock.training is not None
    assert 6 <= clock.agent < 12 + 10
    assert clock.training < clock.agent


def test_gpu_time_is_limited_and_on_the_record(launcher: RunLauncher) -> None:
    run = launcher.run(
        'say(clock=call("GET", "/time"))\ntime.sleep(600)',
        *LOCAL,
        *("--max-gpu-hours", "0.002", "--budget", "10m"),
        CUDA_VISIBLE_DEVICES="0,1",
    )
    assert (run.code, run.result.ending) == (1, "budget-exhausted")
    assert "of 0.002 GPU hours" in run.result.reason
    clock = run.result.clock
    assert clock is not None
    assert clock.gpu is not None
    assert 7.2 <= clock.gpu <= 2 * clock.agent + 2
    assert clock.agent < 60
    assert run.said["clock"]["gpu_seconds_left"] <= 7
    assert run.result.spec.budget.gpu_seconds == pytest.approx(7.2)
    assert "GPU hours" in launcher.report(run)


def test_a_limit_of_gpu_time_is_refused_without_a_gpu(launcher: RunLauncher) -> None:
    script = launcher.script("")
    options = ("--task", "gsm8k-mini", "--agent", f"script:{script}", "--max-gpu-hours", "1")
    refused = launcher.cli("run", *options, CUDA_VISIBLE_DEVICES="")
    assert refused.returncode != 0
    assert "limits GPU time, but this run has no GPU" in refused.stderr
    assert not list(launcher.runs.glob("*"))


@pytest.mark.thorough
def test_a_resumed_run_keeps_both_clocks_and_its_gpu_time(launcher: RunLauncher) -> None:
    dying = CrashingRun(launcher, (*LOCAL, "--clock", "training"))
    assert dying.live(CrashPoint("graded", "told")) == -9, dying.errors
    assert dying.live() == 0, dying.errors
    (resumed,) = [entry.data for entry in dying.entries if entry.kind == "resumed"]
    first, again = [entry.data for entry in dying.entries if entry.kind == "started"]
    assert first["submission_seconds"] == 0
    assert 0 < resumed["submission_seconds"] <= resumed["used_seconds"]  # type: ignore[operator]
    assert again["submission_seconds"] == resumed["submission_seconds"]
    result = RunResult.model_validate_json(dying.said)
    assert result.clock is not None
    assert result.clock.training is not None
    assert result.clock.agent - result.clock.training > resumed["submission_seconds"]  # type: ignore[operator]
    assert verify_run(dying.paths).holds


def test_the_record_of_a_crash_counts_overlapping_submissions_once(launcher: RunLauncher) -> None:
    """Neither of the two submissions has a verdict when the harness dies, ten seconds after the start."""
    spec = RunSpec(
        task="t", agent="a", model="m", engine="e", budget=Budget(wall_seconds=60), clock="training"
    )
    began = time.monotonic()
    with Recorder.create(launcher.runs, spec, lambda _: None) as recorder:
        recorder.record_start(0.0, 5, gpus=2)
        start = time.time()
        first, second = (Submission(id=n, path="m", accepted_at=start + at) for n, at in ((1, 0), (2, 4)))
        recorder.record_submission(first, None)
        recorder.record_submission(second, None)
    entries = ledger.read_ledger(recorder.paths.ledger, recorder.paths.ledger_head).entries
    beat = Heartbeat(time.time() + 10, time.monotonic() + 10)
    state = read_resume_state(recorder.paths, entries, beat)
    assert beat.monotonic is not None
    assert 9.5 < state.submission_seconds <= state.used_seconds <= beat.monotonic - began
    assert state.gpu_seconds == pytest.approx(2 * state.used_seconds)


def test_the_dashboard_moves_the_deadline_while_a_submission_is_held(launcher: RunLauncher) -> None:
    budget = Budget(wall_seconds=60)
    spec = RunSpec(task="t", agent="a", model="m", engine="e", budget=budget, clock="training")
    with Recorder.create(launcher.runs, spec, lambda _: None) as recorder:
        recorder.record_start(time.time() + 60, 5)
        start = read_start_time(recorder)
        recorder.record_submission(Submission(id=1, path="m", accepted_at=start + 10), None)
        assert read_live_status(recorder.paths, start + 30).deadline == pytest.approx(start + 80, abs=1)
        assert read_live_status(recorder.paths, start + 30).used == pytest.approx(10, abs=1)
        assert read_live_status(recorder.paths, start + 119).deadline == pytest.approx(start + 120)


def read_start_time(recorder: Recorder) -> float:
    entries = ledger.read_ledger(recorder.paths.ledger, recorder.paths.ledger_head).entries
    return next(entry.time for entry in entries if entry.kind == "started")
