"""The agent's clock: what counts, what is left, and which limit ends the agent's time."""

from dataclasses import dataclass

from agent2rl.core.records import Budget, Clock
from agent2rl.grading.agent_clock import AgentClock
from agent2rl.record.crash_recovery import ResumeState


@dataclass
class FakeTime:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def start_clock(
    clock: Clock, gpus: int = 0, gpu_seconds: float | None = None, resume_state: ResumeState | None = None
) -> tuple[AgentClock, FakeTime]:
    """A started clock with a budget of 100 s, and the time that it reads."""
    time = FakeTime()
    budget = Budget(wall_seconds=100, gpu_seconds=gpu_seconds)
    agent_clock = AgentClock(budget, clock, gpus, resume_state, read_time=time)
    agent_clock.start()
    return agent_clock, time


def test_the_training_clock_stops_while_a_submission_is_held() -> None:
    clock, time = start_clock("training")
    time.now += 10
    clock.hold_submission(1)
    time.now += 30
    assert (clock.wall_seconds(), clock.training_seconds(), clock.remaining_seconds()) == (40, 10, 90)
    clock.release_submission(1)
    time.now += 5
    assert (clock.wall_seconds(), clock.training_seconds(), clock.remaining_seconds()) == (45, 15, 85)


def test_the_clock_of_all_time_measures_both_times_and_counts_wall_time() -> None:
    clock, time = start_clock("all")
    clock.hold_submission(1)
    time.now += 30
    clock.release_submission(1)
    assert (clock.wall_seconds(), clock.training_seconds(), clock.remaining_seconds()) == (30, 0, 70)


def test_overlapping_submissions_stop_the_clock_once() -> None:
    clock, time = start_clock("training")
    clock.hold_submission(1)
    time.now += 10
    clock.hold_submission(2)
    time.now += 10
    clock.release_submission(1)
    time.now += 10
    clock.release_submission(2)
    clock.release_submission(2)
    time.now += 1
    assert (clock.submission_seconds(), clock.training_seconds()) == (30, 1)


def test_submissions_do_not_extend_the_time_beyond_twice_the_budget() -> None:
    clock, time = start_clock("training")
    clock.hold_submission(1)
    time.now += 150
    assert clock.remaining_seconds() == 50
    time.now += 50
    assert clock.remaining_seconds() == 0
    ending, reason = clock.describe_end()
    assert ending == "deadline"
    assert "limited to 200 s" in reason


def test_gpu_time_is_the_number_of_gpus_times_wall_time_on_every_clock() -> None:
    clock, time = start_clock("training", gpus=4, gpu_seconds=120)
    time.now += 10
    clock.hold_submission(1)
    time.now += 10
    assert (clock.gpu_seconds(), clock.gpu_seconds_left(), clock.remaining_seconds()) == (80, 40, 10)
    time.now += 10
    assert clock.remaining_seconds() == 0
    ending, reason = clock.describe_end()
    assert ending == "budget-exhausted"
    assert "0.03333 of 0.03333 GPU hours" in reason


def test_without_a_gpu_there_is_no_gpu_time() -> None:
    clock, time = start_clock("all")
    time.now += 10
    assert (clock.gpu_seconds(), clock.gpu_seconds_left()) == (None, None)


def test_a_resumed_run_continues_with_the_time_that_it_had_used() -> None:
    before = ResumeState(used_seconds=60, submission_seconds=40, gpu_seconds=60)
    clock, time = start_clock("training", gpus=2, gpu_seconds=1000, resume_state=before)
    assert (clock.wall_seconds(), clock.training_seconds(), clock.remaining_seconds()) == (60, 20, 80)
    time.now += 5
    assert (clock.training_seconds(), clock.gpu_seconds()) == (25, 70)


def test_gradings_after_the_end_of_the_agent_change_nothing() -> None:
    clock, time = start_clock("training")
    time.now += 10
    clock.hold_submission(1)
    clock.end()
    time.now += 30
    clock.release_submission(1)
    assert (clock.wall_seconds(), clock.submission_seconds()) == (10, 0)
