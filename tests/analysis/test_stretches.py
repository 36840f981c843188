"""Each moment of an agent's time is told once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.analysis import timeline
from agent2rl.core.events import Asked, Event, Sample
from agent2rl.core.record import Record
from agent2rl.store.revisions import Revision

START = 5000.0


def event(when: float, kind: str, **data: object) -> Event:
    return Event.model_validate({"time": START + when, "kind": kind, "data": data})


def noted(when: float, kind: str, record: Record) -> Event:
    return event(when, kind, **record.model_dump(mode="json"))


def sample(at: float, cores: float, seconds: float = 10.0) -> Event:
    return noted(at, "sample", Sample(seconds=seconds, cores=cores, resident_bytes=0, processes=1))


def asked(at: float, seconds: float, outcome: str = "answered", stalled: float = 0.0) -> Event:
    told = Asked(began=START + at, seconds=seconds, outcome=outcome, stalled_seconds=stalled)
    return noted(at + seconds, "request", told)


def course(*events: Event, seconds: float = 100.0) -> list[tuple[str, float, float]]:
    told = [event(0, "started"), *events, event(seconds, "ended")]
    return [(each.kind, each.began, each.ended) for each in timeline.read(told).stretches]


def test_a_run_whose_agent_never_started_has_no_time() -> None:
    found = timeline.read([event(0, "opened")])
    assert found.split() is None
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
def test_the_stretches_cover_the_whole_time_once(events: list[Event]) -> None:
    found = course(*events)
    assert found[0][1] == 0
    assert found[-1][2] == pytest.approx(100.0)
    for before, after in pairwise(found):
        assert before[2] == after[1]
        assert before[0] != after[0]
