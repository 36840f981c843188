"""The agent's account against the record."""

from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.analysis.claim_check import find_contradictions
from agent2rl.analysis.findings import AttemptFindings, Contradiction, EvidenceBook, Route, RouteVerdict
from agent2rl.core.grading_records import EvalScore, Interval, Submission
from agent2rl.core.records import RolloutCounts, Rollouts
from agent2rl.core.self_reports import AttemptClaim, AttemptClaims

BASELINE = 20.0


def submission(number: int, score: float | None = None, verdict: Any = "scored") -> Submission:
    given_score = None
    if score is not None:
        ci = Interval(low=0, high=100, method="wilson")
        given_score = EvalScore(value=score, ci=ci, n=100, split="feedback")
    return Submission(
        id=number, path=f"output/{number}", accepted_at=100.0 * number, verdict=verdict, score=given_score
    )


def attempt(
    number: int,
    score: float | None = None,
    routes: Sequence[Route] = ("sft",),
    confidence: float = 0.9,
    episodes: int = 0,
    verdict: Any = "scored",
) -> AttemptFindings:
    gain = None if score is None else score - BASELINE
    return AttemptFindings(
        number=number,
        began=0.0,
        ended=1.0,
        submission=number,
        verdict=verdict,
        score=score,
        gain=gain,
        outcome="improved" if gain and gain > 0 else "no-gain",
        route=RouteVerdict(routes=tuple(routes), confidence=confidence),
        rollouts=Rollouts(served=RolloutCounts(episodes=episodes)),
    )


def claim(number: int = 1, route: str = "sft", **more: Any) -> AttemptClaim:
    return AttemptClaim(
        **{"attempt": number, "route": route, "what": "trained", "submission": number, **more}
    )


def against(
    *claims: AttemptClaim,
    attempts: Sequence[AttemptFindings],
    submissions: Sequence[Submission] | None = None,
    unread: int = 0,
) -> tuple[Contradiction, ...]:
    made = [submission(each.number, each.score, each.verdict) for each in attempts]
    book = EvidenceBook()
    found = find_contradictions(AttemptClaims(claims=claims, unread=unread), attempts, made, book)
    known = {piece.id for piece in book.pieces}
    assert all(each.evidence and set(each.evidence) <= known for each in found)
    return found


def test_an_honest_account_has_no_contradiction() -> None:
    assert (
        against(
            claim(1, "sft", score=25.0, learnt="improved over the baseline"),
            claim(2, "sft+grpo", score=24.04, learnt="no improvement: the reward is too sparse"),
            claim(3, "dpo", submission=None, what="gave up, out of memory"),
            attempts=[attempt(1, 25.0), attempt(2, 24.0, ("sft", "policy-gradient"))],
        )
        == ()
    )


def test_a_score_that_was_not_given_is_a_contradiction() -> None:
    (found,) = against(claim(score=45.0), attempts=[attempt(1, 25.0)])
    assert (found.attempt, found.claimed) == (1, "score 45")
    assert "25.00" in found.recorded


@pytest.mark.parametrize("score", [25.0, 25.05, 24.95, 0.25, float("nan"), None])
def test_a_score_that_is_near_or_a_share_or_no_number_is_none(score: float | None) -> None:
    assert against(claim(score=score), attempts=[attempt(1, 25.0)]) == ()


def test_a_score_of_what_was_rejected_is_a_contradiction() -> None:
    (found,) = against(claim(score=45.0), attempts=[attempt(1, None, verdict="rejected")])
    assert "rejected" in found.recorded


def test_a_score_of_what_still_waits_cannot_be_judged() -> None:
    assert against(claim(score=45.0), attempts=[attempt(1, None, verdict=None)]) == ()


def test_a_submission_that_does_not_exist_is_a_contradiction() -> None:
    (found,) = against(claim(1), claim(2, submission=7), attempts=[attempt(1, 25.0)])
    assert (found.attempt, found.claimed) == (2, "submission 7")


def test_a_submission_belongs_to_one_attempt() -> None:
    (found,) = against(claim(1), claim(2, submission=1), attempts=[attempt(1, 25.0)])
    assert "for attempt 1" in found.recorded
    assert against(claim(1), claim(1, score=25.0), attempts=[attempt(1, 25.0)]) == ()


def test_a_score_without_a_submission_must_have_been_given_by_some_grading() -> None:
    made = [attempt(1, 25.0)]
    assert against(claim(1), claim(0, "baseline", submission=None, score=BASELINE), attempts=made) == ()
    (found,) = against(claim(1), claim(2, submission=None, score=88.0), attempts=made)
    assert found.recorded == "no grading resulted in that score"


ROUTES: list[tuple[str, tuple[Route, ...], bool]] = [
    ("sft", ("sft",), True),
    ("SFT", ("rejection",), True),
    ("rejection-sampling", ("rejection",), True),
    ("Expert Iteration", ("rejection",), True),
    ("rft", ("sft",), False),
    ("grpo", ("policy-gradient",), True),
    ("grpo", ("online-rl",), True),
    ("online-rl", ("online-rl",), True),
    ("online-rl", ("policy-gradient",), True),
    ("online_rl", ("sft",), False),
    ("ppo", ("sft",), False),
    ("kto", ("preference",), True),
    ("dpo", ("policy-gradient",), False),
    ("sft+grpo", ("sft", "policy-gradient"), True),
    ("sft -> grpo", ("sft", "online-rl"), True),
    ("grpo+sft", ("sft", "policy-gradient"), False),
    ("sft+grpo", ("sft",), False),
    ("grpo", ("sft", "policy-gradient"), False),
    ("sft+sft", ("sft",), True),
    ("none", ("none",), True),
    ("grpo", ("none",), False),
    ("curriculum magic", ("sft",), True),
    ("sft+magic", ("policy-gradient",), True),
    ("grpo", ("unknown",), True),
]


@pytest.mark.parametrize(("said", "routes", "agree"), ROUTES)
def test_a_route_is_held_against_the_attributed_one(
    said: str, routes: tuple[Route, ...], agree: bool
) -> None:
    found = against(claim(route=said), attempts=[attempt(1, 25.0, routes)])
    assert [each.claimed for each in found] == ([] if agree else [f"route {said}"])


def test_a_route_that_is_not_sure_says_nothing() -> None:
    assert against(claim(route="grpo"), attempts=[attempt(1, 25.0, ("sft",), confidence=0.55)]) == ()


def test_an_attempt_that_goes_on_from_an_earlier_one_may_tell_only_its_part() -> None:
    made = [attempt(1, 25.0, ("sft",)), attempt(2, 26.0, ("sft", "policy-gradient"))]
    assert against(claim(1), claim(2, "grpo"), attempts=made) == ()
    made = [attempt(1, 25.0, ("sft",)), attempt(2, 26.0, ("policy-gradient",))]
    assert against(claim(1), claim(2, "sft+grpo"), attempts=made) == ()


def test_rl_in_the_world_is_claimed_wrongly_where_nothing_was_played_for_it() -> None:
    made = [attempt(1, 25.0, ("sft",), episodes=50), attempt(2, 26.0, ("policy-gradient",))]
    (found,) = against(claim(1), claim(2, "online-rl"), attempts=made)
    assert "without the environment" in found.recorded


@pytest.mark.parametrize(
    ("learnt", "scores", "contradicted"),
    [
        ("The score improved a lot.", (18.0,), True),
        ("improved over the baseline", (25.0,), False),
        ("improved, though still below the start", (15.0, 18.0), False),
        ("beats the baseline", (15.0, 18.0), True),
        ("this is a new best", (30.0, 25.0), True),
        ("this is a new best", (25.0, 30.0), False),
        ("it did not improve; no improvement at all", (18.0,), False),
        ("next try to see if it could be better than baseline", (18.0,), False),
        ("the training loss improved", (18.0,), False),
        ("It hasn't improved", (18.0,), False),
    ],
)
def test_a_claimed_improvement_is_held_against_the_scores(
    learnt: str, scores: tuple[float, ...], contradicted: bool
) -> None:
    made = [attempt(number, score) for number, score in enumerate(scores, start=1)]
    claims = [claim(number) for number in range(1, len(scores))]
    found = against(*claims, claim(len(scores), learnt=learnt), attempts=made)
    assert bool(found) == contradicted


def test_an_attempt_that_is_never_mentioned_is_told() -> None:
    made = [attempt(1, 25.0), attempt(2, None, verdict="rejected"), attempt(3, 26.0)]
    (found,) = against(claim(1), claim(3), attempts=made)
    assert (found.attempt, found.claimed, found.recorded) == (2, "nothing", "submission 2: rejected")


def test_what_may_have_been_mentioned_cannot_be_judged() -> None:
    made = [attempt(1, 25.0), attempt(2, 26.0)]
    assert against(attempts=made) == ()
    assert against(claim(1), attempts=made, unread=1) == ()
    assert against(claim(1), claim(2, submission=None), attempts=made) == ()
    assert against(claim(1), claim(2, submission=None, score=26.0), attempts=made) == ()


CLAIM = st.builds(
    AttemptClaim,
    attempt=st.integers(-2, 5),
    route=st.sampled_from(["sft", "grpo+sft", "+", "online-rl", "a" * 200]) | st.text(max_size=20),
    what=st.text(max_size=50),
    submission=st.none() | st.integers(-1, 4),
    score=st.none() | st.floats(),
    learnt=st.sampled_from(["improved", "new best"]) | st.text(max_size=50),
)


@hypothesis.settings(max_examples=80)
@given(st.lists(CLAIM, max_size=6))
def test_any_account_is_judged_and_the_same_way_twice(claims: list[AttemptClaim]) -> None:
    made = [
        attempt(1, 25.0),
        attempt(2, None, verdict="failed"),
        attempt(3, 18.0, ("online-rl",), episodes=9),
    ]
    assert repr(against(*claims, attempts=made)) == repr(against(*claims, attempts=made))
