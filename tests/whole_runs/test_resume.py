"""A run whose harness died goes on: nothing that was acknowledged is lost, and nothing is done twice."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from agent2rl import registry
from agent2rl.core.errors import GradingError, Refusal, UserError
from agent2rl.core.grading_records import JudgeUsage, Submission
from agent2rl.core.records import Budget, RunResult, RunSpec
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.environments.adapters import EpisodeTrace
from agent2rl.fake_llm.script_file import parse_script
from agent2rl.fake_llm.server import run_in_thread
from agent2rl.gateway.tape import TapedExchange, TapeRecording, read_tape
from agent2rl.grading.freeze import FreezeLimits, freeze_submission, require_intact_copy
from agent2rl.grading.grading_proxy import JudgeProxy
from agent2rl.grading.rollout_meter import ReportOutOfOrder, RolloutMeter
from agent2rl.grading.training_judge import QuestionsUsedUp, TrainingJudge, TrainingJudgeRequest
from agent2rl.grading.verify import verify_run
from agent2rl.record import heartbeat, ledger, run_lock
from agent2rl.record.crash_recovery import ResumeState, read_resume_state, read_spec
from agent2rl.record.files import write_record
from agent2rl.record.paths import SubmissionPaths
from agent2rl.record.reader import read_run
from agent2rl.record.recorder import Recorder
from agent2rl.record.run_lock import Heartbeat, RunLock, is_held
from agent2rl.run.agent_python import find_agent_python
from agent2rl.run.assets import load_assets, prepare_model_directory
from agent2rl.run.run_outcome import RunOutcome
from agent2rl.run.workspace import RunTimes, write_first_run_meta
from agent2rl.tasks.gsm8k.mini import TASK as MINI
from tests.helpers.crashing_runs import CrashingRun, CrashPoint, find_resume_faults, kill_at_random_times
from tests.helpers.python_environments import add_package, make_venv
from tests.helpers.recorded_meter import RecordedMeter, open_recorded_meter
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_worlds import STAIRS_WORLD
from tests.helpers.waiting import wait_until

KILLED = -9


@pytest.mark.thorough
def test_a_harness_that_dies_at_each_step_of_a_run_loses_nothing(launcher: RunLauncher) -> None:
    """Thirteen harnesses after each other; what each finds is what the one before left."""
    dying = CrashingRun(launcher)
    deaths = (
        CrashPoint("results"),
        CrashPoint("started", "torn"),
        CrashPoint("submitted", "no-head"),
        CrashPoint("grading", "told"),
        CrashPoint("results"),
        CrashPoint("graded", "torn"),
        CrashPoint("graded", which=2),
        CrashPoint("submitted", "told"),
        CrashPoint("ended"),
        CrashPoint("contamination", "before"),
        CrashPoint("heldout", "before"),
        CrashPoint("closed"),
    )
    for death in deaths:
        assert dying.live(death) == KILLED, (death, dying.errors)
    assert dying.live() == 0, dying.errors
    assert list(find_resume_faults(dying, len(deaths))) == []
    finished = dying.paths.ledger.read_bytes()
    again = launcher.cli("resume", dying.paths.run_id, "--json")
    assert again.returncode == 0
    assert "there is nothing to resume" in again.stderr
    assert RunResult.model_validate_json(again.stdout).resumed == len(deaths) - 1  # the last one was over
    assert dying.paths.ledger.read_bytes() == finished
    assert "11 times, after a harness crash" in launcher.cli("show", dying.paths.run_id).stdout


def test_a_harness_that_is_killed_at_any_time_loses_nothing(launcher: RunLauncher) -> None:
    dying, seed = CrashingRun(launcher, ("--sandbox", "bubblewrap")), random.randrange(1000)
    deaths = kill_at_random_times(dying, seed, most=2, seconds=4.0)
    assert list(find_resume_faults(dying, deaths)) == [], (seed, dying.errors)


def test_time_that_was_used_up_is_not_given_a_second_time(launcher: RunLauncher) -> None:
    dying = CrashingRun(
        launcher, ("--sandbox", "local", "--budget", "3s"), "print('begun', flush=True)\ntime.sleep(60)"
    )
    assert dying.live(CrashPoint("ended", "before")) == KILLED, dying.errors
    assert dying.live() == 0, dying.errors
    result = RunResult.model_validate_json(dying.said)
    assert (result.ending, result.resumed) == ("deadline", 1)
    assert result.clock is not None
    assert 2.9 < result.clock.agent < 60
    assert dying.paths.agent_log.read_text().count("begun") == 1
    assert "used up when the harness crashed" in result.reason


def test_a_driven_agent_goes_on_within_its_caps_or_begins_anew_with_a_brief(launcher: RunLauncher) -> None:
    script = parse_script('[[step]]\nsay = "Well."\n')
    with run_in_thread(script) as url:
        driven = (
            "--agent",
            "tests.whole_runs.driver_calling_agent:AGENT",
            "--driver",
            f"scripted-1@{url}",
            "--max-tokens",
            "100",
        )
        dying = CrashingRun(launcher, ("--sandbox", "local", "--continues", "0", *driven))
        assert dying.live(CrashPoint("request", "told", which=2)) == KILLED, dying.errors
        assert dying.live() == 1, dying.errors
    result = RunResult.model_validate_json(dying.said)
    assert result.ending == "budget-exhausted", result.reason
    assert result.usage is not None
    assert (result.usage.answered, result.usage.refused, result.usage.tokens.total) == (4, 1, 100)
    assert result.usage.requests == len(dying.paths.usage.read_text().splitlines())
    first, going, anew = dying.notes()
    assert (first["goes_on"], going["goes_on"], anew["goes_on"]) == ("False", "True", "False")
    assert (first["resumed"], going["resumed"], anew["resumed"]) == (None, "1", "1")
    assert "crashed and has been restarted" in going["prompt"]
    assert "10 minutes of your time remaining" in going["prompt"]
    assert anew["prompt"] == f"{first['prompt']}\n{going['prompt']}"
    assert verify_run(dying.paths).holds


# What cannot go on


@contextmanager
def begun(launcher: RunLauncher, **more: object) -> Iterator[Recorder]:
    """The record of a run that has just begun."""
    spec = RunSpec.model_validate(
        {
            "task": "gsm8k-mini",
            "agent": "nop",
            "model": "abacus",
            "engine": "scripted:agent2rl.models.abacus:solver",
            "sandbox": "local",
            "budget": {"wall_seconds": 60},
            **more,
        }
    )
    with Recorder.create(launcher.runs, spec, lambda _: None) as recorder:
        yield recorder


def test_a_run_that_is_going_is_left_alone(launcher: RunLauncher) -> None:
    with begun(launcher) as recorder:
        asked = launcher.cli("resume", recorder.paths.run_id)
        assert asked.returncode == 2
        assert "A harness is at work" in asked.stderr
        before = recorder.ledger_head
    assert ledger.read_ledger(recorder.paths.ledger, recorder.paths.ledger_head).entries[-1].hash == before
    assert f"agent2rl resume {recorder.paths.run_id}" in launcher.cli("show", "latest").stdout


def test_a_record_that_was_changed_is_refused_by_its_fault_and_not_mended(launcher: RunLauncher) -> None:
    with begun(launcher) as recorder:
        recorder.record_entry("limits", memory_bytes=1, disk_bytes=1, processes=1)
    paths = recorder.paths
    whole = paths.ledger.read_bytes()
    paths.ledger.write_bytes(whole.replace(b'"disk_bytes":1', b'"disk_bytes":9'))
    asked = launcher.cli("resume", paths.run_id)
    assert asked.returncode == 2
    assert "ledger record 1 was changed" in asked.stderr
    assert paths.ledger.read_bytes() != whole
    paths.ledger.write_bytes(whole)
    paths.spec.write_text(paths.spec.read_text().replace('"seed": 0', '"seed": 1'))
    asked = launcher.cli("resume", paths.run_id)
    assert asked.returncode == 2
    assert "spec.json was changed" in asked.stderr
    assert paths.ledger.read_bytes() == whole


def test_other_inputs_than_it_began_with_are_named_and_the_run_stays_as_it_was(launcher: RunLauncher) -> None:
    model = launcher.home / "model"
    shutil.copytree(prepare_model_directory("abacus", launcher.cache), model)
    with begun(launcher, model=str(model)) as recorder:
        spec = read_spec(recorder.paths)
        assets = load_assets(
            spec, registry.find_task(spec.task), launcher.cache, registry.find_sandbox("local")
        )
        recorder.record_entry("assets", assets=[record.model_dump() for record in assets.records])
    config = next(model.glob("*.json"))
    config.write_text(config.read_text() + "\n")
    asked = launcher.cli("resume", recorder.paths.run_id)
    assert asked.returncode == 2
    assert "changed since the run began: model" in asked.stderr
    assert read_run(recorder.paths).state == "crashed"
    assert verify_run(recorder.paths).holds


def test_other_packages_of_the_agent_s_python_than_it_began_with_are_refused(launcher: RunLauncher) -> None:
    environment = make_venv(launcher.home / "env")
    lock = find_agent_python(environment).lock.sha256
    with begun(launcher, agent_python=str(environment), agent_python_lock=lock) as recorder:
        pass
    added = add_package(environment, "torch", "2.13.0")
    asked = launcher.cli("resume", recorder.paths.run_id)
    assert asked.returncode == 2
    assert "The packages of the agent's Python" in asked.stderr
    shutil.rmtree(added.with_name("torch-2.13.0.dist-info"))
    assert launcher.cli("resume", recorder.paths.run_id, "--no-report").returncode == 0


def test_a_workspace_that_is_gone_is_said_and_the_run_stays_as_it_was(launcher: RunLauncher) -> None:
    with begun(launcher) as recorder:
        recorder.record_start(0.0, 2)
    asked = launcher.cli("resume", recorder.paths.run_id)
    assert asked.returncode == 2
    assert f"The workspace of {recorder.paths.run_id} is missing" in asked.stderr
    assert read_run(recorder.paths).state == "crashed"
    assert verify_run(recorder.paths).holds


def test_a_lock_or_a_result_that_cannot_be_read_is_said(launcher: RunLauncher) -> None:
    with begun(launcher) as recorder:
        pass
    paths = recorder.paths
    paths.lock.write_text("nan inf\n")
    with RunLock(paths.lock) as hold:
        assert hold.last_heartbeat is None
    paths.lock.unlink()
    paths.lock.mkdir()
    asked = launcher.cli("resume", paths.run_id)
    assert asked.returncode == 2
    assert "cannot be opened: Is a directory" in asked.stderr
    paths.lock.rmdir()
    paths.result.write_text("{")
    asked = launcher.cli("resume", paths.run_id, "--json")
    assert asked.returncode == 2, "so that a campaign does it anew"
    assert "result.json cannot be read" in asked.stderr


def test_a_result_that_was_removed_is_not_made_up(launcher: RunLauncher) -> None:
    with begun(launcher) as recorder:
        recorder.close(
            RunOutcome.from_resume_state(
                recorder.paths.run_id, read_spec(recorder.paths), ResumeState()
            ).make_result()
        )
    recorder.paths.result.unlink()
    asked = launcher.cli("resume", recorder.paths.run_id)
    assert asked.returncode == 2
    assert "is finished, but its result was removed" in asked.stderr


# What goes on counting


def reopened(recorder: Recorder) -> Recorder:
    return Recorder.open(recorder.paths, lambda _: None, RunLock(recorder.paths.lock))


def test_steps_in_a_world_go_on_counting(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path, steps=100) as one:
        one.meter.count_claim(one.report(1, steps=40, episodes=1))
        one.meter.begin_episode()
        one.meter.count_step(won=True)
        one.meter.close_and_sum_totals()
    with reopened(one.recorder) as recorder:
        again = RecordedMeter(
            RolloutMeter(Budget(wall_seconds=60, environment_steps=100), recorder), recorder
        )
        assert again.meter.steps_left() == 59
        again.meter.count_claim(again.report(2, steps=50))
        with pytest.raises(ReportOutOfOrder):
            again.meter.count_claim(again.report(1, steps=1))
        assert again.meter.sum_totals().claimed.steps == 90
        assert again.meter.sum_totals().served.successes == 1
        assert again.meter.steps_left() == 9


def test_replayed_episodes_go_on_counting_and_are_not_proved_again(tmp_path: Path) -> None:
    world = replace(STAIRS_WORLD, replayable=True)
    traces = [EpisodeTrace("stairs-2", ("up", "up"), 1.0, True), EpisodeTrace("stairs-2", ("up",), 1.0, True)]
    with open_recorded_meter(tmp_path) as one:
        one.meter.replay_in(world, lambda _: None)
        one.meter.count_claim(one.report(1, steps=3, episodes=2, successes=2))
        one.meter.accept_episodes(one.report_traces(1, traces))
        before = one.meter.close_and_sum_totals()
        assert (before.replayed.episodes, before.refuted.episodes) == (1, 1)
    with reopened(one.recorder) as recorder:
        again = RecordedMeter(RolloutMeter(Budget(wall_seconds=60), recorder), recorder)
        assert again.meter.sum_totals() == before
        with pytest.raises(Refusal):
            again.meter.accept_episodes(again.report_traces(1, traces[:1]))


def test_questions_to_a_train_judge_go_on_counting(tmp_path: Path) -> None:
    noted: list[JudgeUsage] = []
    judging = JudgeProxy("it", ScriptedEngine(lambda _: "Good."), tmp_path)
    training_judge = TrainingJudge(judging, 3, note=noted.append)
    question = TrainingJudgeRequest.model_validate({"messages": [{"role": "user", "content": "Well?"}]})
    training_judge.answer_question(question)
    training_judge = TrainingJudge(judging, 3, before=noted[-1])
    training_judge.answer_question(question)
    training_judge.answer_question(question)
    with pytest.raises(QuestionsUsedUp):
        training_judge.answer_question(question)
    assert training_judge.read_usage().questions == 3


def test_a_tape_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    taped = TapedExchange(
        number=1,
        at=0,
        wire="anthropic",
        kind="generate",
        model="m",
        stream=False,
        request="{}",
        status=200,
        headers={},
        outcome="answered",
        answer="",
    )
    tape = tmp_path / "tape"
    with closing(TapeRecording(tape)) as first:
        first.write(taped)
    tape.write_bytes(tape.read_bytes() + b'{"number": 2, "a')
    with closing(TapeRecording(tape, again=True)) as second:
        second.write(taped.model_copy(update={"number": second._number + 1}))
    assert [one.number for one in read_tape(tape)] == [1, 2]


# What is mended, and what is not trusted


def test_a_harness_says_when_it_was_last_alive_and_refusals_do_not_change_that(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    began = time.time()
    with RunLock(path) as first:
        assert first.last_heartbeat is None
        first.start_heartbeat()
        with pytest.raises(UserError, match="A harness is at work"):
            RunLock(path)
    with RunLock(path) as second:
        assert second.last_heartbeat is not None
        assert began - 0.01 <= second.last_heartbeat.time <= time.time()
        time.sleep(0.05)
    with RunLock(path) as third:
        assert third.last_heartbeat == second.last_heartbeat


def test_whoever_looks_at_a_run_is_never_in_the_way_of_a_harness(tmp_path: Path) -> None:
    path, looked = tmp_path / "lock", "from agent2rl.record.run_lock import is_held; from pathlib import Path"
    code = f"{looked}\nwhile True: is_held(Path({str(path)!r})) and print('held', flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as looking:
        assert looking.stdout is not None
        with RunLock(path):
            assert looking.stdout.readline() == b"held\n"
        until = time.monotonic() + 1
        while time.monotonic() < until:
            RunLock(path).close()
        looking.kill()


@contextmanager
def harness_that_gets_no_time(path: Path, heart: str = heartbeat.__file__) -> Iterator[None]:
    """A stopped harness, as one is that waits for a processor. It is killed at the end."""
    code = "import sys, time; from pathlib import Path"
    code += "\nfrom agent2rl.record.run_lock import RunLock, heartbeat"
    code += "\nheartbeat.__file__ = sys.argv[2]; RunLock(Path(sys.argv[1])).start_heartbeat()"
    code += "\nprint(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, str(path), heart], stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        harness.stdout.readline()
        harness.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            harness.kill()


def test_a_harness_that_gets_no_time_is_alive(tmp_path: Path) -> None:
    """The agent's time goes on while it is stopped."""
    path = tmp_path / "lock"
    with harness_that_gets_no_time(path):
        stopped = time.time()
        wait_until(lambda: float(path.read_bytes().split()[0]) > stopped)


def test_the_moment_of_a_harnesss_death_is_noted_and_not_the_next_beat(tmp_path: Path) -> None:
    source = Path(heartbeat.__file__).read_text(encoding="utf-8")
    slow = tmp_path / "slow_heartbeat.py"
    slow.write_text(source.replace("HEARTBEAT_SECONDS = 1.0", "HEARTBEAT_SECONDS = 600.0"), encoding="utf-8")
    assert slow.read_text(encoding="utf-8") != source
    path = tmp_path / "lock"
    with harness_that_gets_no_time(path, str(slow)):
        died = time.monotonic()
    beat = _beat(path).monotonic
    assert beat is not None
    assert beat >= died - 0.001, "it is noted in milliseconds"


@contextmanager
def harness_with_a_stopped_heart(path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """As on a machine on which the heart gets no time; yields the harness and the process of its heart."""
    code = "import sys, time; from pathlib import Path; from agent2rl.record.run_lock import RunLock"
    code += "\nlock = RunLock(Path(sys.argv[1])); lock.start_heartbeat()"
    code += "\nprint(lock._heartbeat_process.pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        heart = int(harness.stdout.readline())
        os.kill(heart, signal.SIGSTOP)
        try:
            yield harness, heart
        finally:
            harness.kill()
            with suppress(ProcessLookupError):  # it ends by itself once it has noted the death
                os.kill(heart, signal.SIGKILL)


def test_a_harness_beats_itself_while_its_heart_gets_no_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with harness_with_a_stopped_heart(path):
        stopped = time.time()
        wait_until(lambda: float(path.read_bytes().split()[0]) > stopped)


def test_whoever_resumes_at_once_waits_until_the_heart_has_noted_the_death(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with harness_with_a_stopped_heart(path) as (harness, heart):
        harness.kill()
        harness.wait()
        died = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            resuming = pool.submit(_beat, path)
            wait_until(lambda: is_held(path))
            time.sleep(0.2)  # it waits for the heart by now
            assert not resuming.done()
            continued = time.monotonic()
            os.kill(heart, signal.SIGCONT)
            beat = resuming.result().monotonic
    assert beat is not None
    assert died <= beat < continued, "no later than the harness that resumes it began"


def test_a_heart_that_stands_still_for_ever_keeps_nobody_from_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "LAST_HEARTBEAT_SECONDS", 0.2)
    path = tmp_path / "lock"
    with harness_with_a_stopped_heart(path) as (harness, _):
        harness.kill()
        harness.wait()
        died = time.monotonic()
        with RunLock(path) as again:
            assert again.last_heartbeat is not None
            assert again.last_heartbeat.monotonic is not None
            assert again.last_heartbeat.monotonic <= died
            again.start_heartbeat()


def _beat(path: Path) -> Heartbeat:
    with RunLock(path) as hold:
        assert hold.last_heartbeat is not None
        return hold.last_heartbeat


def test_used_time_does_not_follow_a_clock_that_somebody_sets(launcher: RunLauncher) -> None:
    began = time.monotonic()
    with begun(launcher) as recorder:
        recorder.record_start(0.0, 2)
    for hour in (-3600.0, 3600.0):
        beat = Heartbeat(time.time() + hour, time.monotonic() + 7.0)
        entries = ledger.read_ledger(recorder.paths.ledger, recorder.paths.ledger_head).entries
        used = read_resume_state(recorder.paths, entries, beat).used_seconds
        assert beat.monotonic is not None
        assert 7.0 <= used <= beat.monotonic - began + heartbeat.HEARTBEAT_SECONDS
    old = Heartbeat(entries[-1].time + 7.0, None)
    assert 6.9 < read_resume_state(recorder.paths, entries, old).used_seconds < 7.1


def test_a_frozen_copy_that_is_not_what_it_was_is_not_graded(tmp_path: Path) -> None:
    where = SubmissionPaths(tmp_path / "1")
    (tmp_path / "workspace" / "m").mkdir(parents=True)
    (tmp_path / "workspace" / "m" / "model.safetensors").write_bytes(b"1" * 100)
    where.root.mkdir()
    frozen = freeze_submission(tmp_path / "workspace", PurePosixPath("m"), where.model, FreezeLimits())
    digest = write_record(where.manifest, frozen.manifest)
    require_intact_copy(where, digest)
    (where.model / "model.safetensors").write_bytes(b"1" * 99)
    with pytest.raises(GradingError, match="damaged when the harness crashed"):
        require_intact_copy(where, digest)


def test_a_second_verdict_on_a_submission_does_not_verify(launcher: RunLauncher) -> None:
    one = Submission(id=1, path="m", accepted_at=0, verdict="rejected")
    with begun(launcher) as recorder:
        recorder.record_submission(one, None)
        recorder.record_verdict(one)
    assert verify_run(recorder.paths).holds
    with reopened(recorder) as again:
        again.record_verdict(one)
    assert verify_run(recorder.paths).fault == "ledger record 4 grades submission 1 a second time"


@pytest.mark.parametrize("kind", ["link", "folder", "nothing"])
def test_whatever_an_agent_put_in_place_of_the_clock_gives_way(tmp_path: Path, kind: str) -> None:
    outside, place = tmp_path / "outside", tmp_path / "workspace" / "run_meta.json"
    outside.write_text("kept")
    place.parent.mkdir()
    if kind == "link":
        place.symlink_to(outside)
    elif kind == "folder":
        (place / "deep").mkdir(parents=True)
    spec = RunSpec(task="t", agent="a", model="m", engine="e", budget=Budget(wall_seconds=60))
    write_first_run_meta(place.parent, spec, MINI, RunTimes(1000.0))
    assert json.loads(place.read_text())["start_time"] == 1000
    assert outside.read_text() == "kept"
