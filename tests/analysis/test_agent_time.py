"""Each moment of an agent's time is told once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.analysis import timeline
from agent2rl.analysis.timeline import AgentTime
from agent2rl.core.base_record import Record
from agent2rl.core.events import DriverRequest, ProcessStart, ResourceSample, TimelineEvent
from agent2rl.record.revisions import Revision

START = 5000.0


def event(when: float, kind: str, **data: object) -> TimelineEvent:
    return TimelineEvent.model_validate({"time": START + when, "kind": kind, "data": data})


def noted(when: float, kind: str, record: Record) -> TimelineEvent:
    return event(when, kind, **record.model_dump(mode="json"))


def sample(at: float, cores: float, seconds: float = 10.0) -> TimelineEvent:
    return noted(at, "sample", ResourceSample(seconds=seconds, cores=cores, resident_bytes=0, processes=1))


def asked(at: float, seconds: float, outcome: str = "answered", stalled: float = 0.0) -> TimelineEvent:
    told = DriverRequest(began=START + at, seconds=seconds, outcome=outcome, stalled_seconds=stalled)
    return noted(at + seconds, "request", told)


def course(*events: TimelineEvent, seconds: float = 100.0) -> list[tuple[str, float, float]]:
    told = [event(0, "started"), *events, event(seconds, "ended")]
    return [(each.kind, each.began, each.ended) for each in timeline.read_timeline(told).stretches]


def test_a_run_whose_agent_never_started_has_no_time() -> None:
    found = timeline.read_timeline([event(0, "opened")])
    assert found.split_time() is None
    assert found.stretches == ()


def test_busy_cores_are_training_and_the_rest_is_idle() -> None:
    assert course(sample(10, 0.1), sample(20, 1.8), sample(30, 0.0)) == [
        ("idle", 0, 10),
        ("training", 10, 20),
        ("idle", 20, 100),
    ]


def test_waiting_for_a_grade_is_told_from_training_meanwhile() -> None:
    found = course(
        event(10, "submitted", submission={"id": 1}),
        sample(30, 2.0),
        event(50, "graded", submission={"id": 1}),
    )
    assert found == [
        ("idle", 0, 10),
        ("grading", 10, 20),
        ("training", 20, 30),
        ("grading", 30, 50),
        ("idle", 50, 100),
    ]


def test_an_agent_thinks_while_its_driver_answers_and_acts_between_two_questions() -> None:
    assert course(asked(0, 10), asked(15, 5), asked(80, 5)) == [
        ("thinking", 0, 10),
        ("coding", 10, 15),
        ("thinking", 15, 20),
        ("idle", 20, 80),
        ("thinking", 80, 85),
        ("idle", 85, 100),
    ]


def test_a_failed_request_and_the_wait_before_the_next_are_the_providers() -> None:
    found = course(asked(10, 5, "provider-error", 5), asked(25, 10, "answered", 10))
    assert ("stalled", 10, 25) in found
    assert ("thinking", 25, 35) in found


def test_a_change_of_code_is_coding() -> None:
    revision = Revision(number=1, commit="c", at=START + 50, reason="changed", files=1, changed=1)
    assert ("coding", 48, 50) in course(noted(50, "revision", revision))


def test_an_event_of_another_form_is_passed_over() -> None:
    assert course(event(10, "sample", cores="many"), event(20, "request")) == [("idle", 0, 100)]


@given(
    st.lists(
        st.one_of(
            st.builds(sample, st.floats(0, 120), st.floats(0, 4), st.floats(0, 20)),
            st.builds(asked, st.floats(0, 120), st.floats(0, 30), st.sampled_from(["answered", "stalled"])),
        ),
        max_size=12,
    )
)
def test_the_stretches_cover_the_whole_time_once(events: list[TimelineEvent]) -> None:
    found = course(*events)
    assert found[0][1] == 0
    assert found[-1][2] == pytest.approx(100.0)
    for before, after in pairwise(found):
        assert before[2] == after[1]
        assert before[0] != after[0]


def test_an_agent_that_was_told_to_go_on_is_not_over() -> None:
    told = [event(0, "started"), event(10, "ended"), event(11, "continued"), sample(60, 1.0)]
    assert timeline.read_timeline(told).seconds == 60
    assert timeline.read_timeline([*told, event(70, "ended"), event(90, "usage")]).seconds == 70


def resumed_course(*events: TimelineEvent) -> timeline.AgentTimeline:
    """40 s, then a death, 1,000 s of dead time, and 60 s more."""
    told = [
        event(0, "started", used_seconds=0.0),
        *[each for each in events if each.time < START + 900],
        event(1030, "resumed", used_seconds=40.0, dead_seconds=990.0),
        event(1040, "started", used_seconds=40.0),
        *[each for each in events if each.time > START + 900],
        event(1100, "ended"),
    ]
    return timeline.read_timeline(told)


def test_dead_time_is_no_part_of_the_agents_time() -> None:
    found = resumed_course(sample(20, 2.0), sample(1060, 2.0))
    assert found.seconds == 100.0
    assert [(each.kind, each.began, each.ended) for each in found.stretches] == [
        ("idle", 0, 10),
        ("training", 10, 20),
        ("idle", 20, 50),
        ("training", 50, 60),
        ("idle", 60, 100),
    ]


def test_what_is_graded_while_the_agent_is_dead_costs_it_no_time() -> None:
    found = resumed_course(
        event(30, "submitted", submission={"id": 1}),
        event(1035, "graded", submission={"id": 1}),
        sample(1060, 0.0),
    )
    assert found.graded == ((30.0, 40.0),)
    split = found.split_time()
    assert split is not None
    assert (split.grading, split.idle) == (10.0, 90.0)


def test_a_process_of_a_dead_harness_ended_with_it() -> None:
    found = resumed_course(
        noted(5, "began", ProcessStart(pid=1, began=START + 5, parent=0, name="a", command="a")),
        noted(1050, "began", ProcessStart(pid=1, began=START + 1050, parent=0, name="b", command="b")),
    )
    assert [(each.began, each.ended) for each in found.processes] == [(5.0, 40.0), (50.0, None)]


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=1, max_size=6), st.data())
def test_the_agents_time_never_runs_backwards(lives: list[tuple[float, float]], data: st.DataObject) -> None:
    """Lives and deaths of any length after each other."""
    starts, at, used = [], 0.0, 0.0
    for alive, dead in lives:
        starts.append((at, used))
        at, used = at + alive + dead, used + alive
    clock = AgentTime(tuple(starts))
    times = sorted(data.draw(st.lists(st.floats(-10, at + 10), min_size=2)))
    found = [clock.seconds_at(time) for time in times]
    assert all(before <= after for before, after in pairwise(found))
    assert all(one <= max(time, 0) + 1e-6 for one, time in zip(found, times, strict=True))
