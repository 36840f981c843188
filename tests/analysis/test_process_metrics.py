"""The published process metrics, on runs whose course is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.analysis.analyse import compute_best_area, measure_run
from agent2rl.analysis.findings import ProcessMetrics
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.core.events import GpuSample, ResourceSample
from agent2rl.core.grading_records import EvalScore, Interval, Lineage, Submission, Verdict

START = 1_000_000.0
CI = Interval(low=0, high=100, method="wilson")


def scored(value: float) -> EvalScore:
    return EvalScore(value=value, ci=CI, n=10, split="feedback")


def submission(
    number: int, at: float, value: float | None, verdict: Verdict = "scored", lineage: Lineage = "derived"
) -> Submission:
    return Submission(
        id=number,
        path=f"output/{number}",
        accepted_at=START + at,
        verdict=verdict if value is None else "scored",
        score=scored(value) if value is not None else None,
        lineage=lineage,
        grading_seconds=5.0,
    )


def measured(*submissions: Submission, seconds: float = 100.0, budget: float = 200.0) -> ProcessMetrics:
    return measure_run(submissions, scored(10.0), AgentTimeline(START, seconds), budget)


def test_a_run_with_a_rejected_start_and_two_gains() -> None:
    found = measured(
        submission(1, 10, None, "rejected"),
        submission(2, 20, 10.0, lineage="copied"),
        submission(3, 40, 30.0),
        submission(4, 60, 20.0),
        submission(5, 80, 50.0),
    )
    assert found.valid_submission_rate == 0.8
    assert (found.first_valid_idx, found.first_valid_delay) == (2, 25.0)
    assert found.score_trajectory == (None, 10.0, 30.0, 20.0, 50.0)
    assert found.time_to_first_improvement == 45.0
    assert found.time_to_best == 85.0
    assert found.monotonic_ratio == pytest.approx(2 / 3)
    assert found.copy_model_count == 1
    assert found.time_used_ratio == 0.5
    assert found.last_submit_gap == 20.0


def test_without_submissions_nothing_is_a_number_that_would_be_a_guess() -> None:
    found = measured()
    assert found.valid_submission_rate is None
    assert found.time_to_best is None
    assert found.monotonic_ratio is None
    assert found.last_submit_gap is None
    assert found.best_area == 0.0
    assert found.cpu_busy is None


def test_a_score_of_zero_is_valid() -> None:
    assert measured(submission(1, 10, 0.0)).valid_submission_rate == 1.0


def test_busy_shares_are_weighed_by_time() -> None:
    samples = (
        (10.0, ResourceSample(seconds=10, cores=2, resident_bytes=1, processes=1)),
        (
            40.0,
            ResourceSample(seconds=30, cores=0, resident_bytes=1, processes=1, gpus=(_gpu(0.5), _gpu(0.1))),
        ),
    )
    found = measure_run([], None, AgentTimeline(START, 40.0, samples=samples), 100)
    assert found.cpu_busy == 0.5
    assert found.gpu_busy == pytest.approx(0.3)


def _gpu(busy: float) -> GpuSample:
    return GpuSample(index=0, busy=busy, memory_bytes=0)


def test_an_early_gain_has_a_greater_area_than_a_late_one() -> None:
    assert compute_best_area([(50, 30)], 10, 100) == 10.0
    assert compute_best_area([(90, 30)], 10, 100) == 2.0


@given(st.lists(st.tuples(st.floats(0, 150), st.floats(0, 100)), max_size=8), st.floats(0, 100))
def test_the_area_lies_between_nothing_and_the_greatest_gain(
    course: list[tuple[float, float]], baseline: float
) -> None:
    greatest = max([0.0, *(value - baseline for _, value in course)])
    assert -1e-6 <= compute_best_area(course, baseline, 100.0) <= greatest + 1e-6
