"""What is kept of a run, and what counts as its gain."""

from pathlib import Path
from typing import get_args

import pytest

from agent2rl.analysis import timeline
from agent2rl.analysis.analyse import measure_run
from agent2rl.analysis.campaigns.run_digest import RunDigest, count_excluded, digest_run, group_by
from agent2rl.analysis.findings import AttemptFindings, Compliance, Findings, RouteVerdict
from agent2rl.analysis.gain import compare_examples
from agent2rl.analysis.recorded_run import RecordedRun
from agent2rl.core.events import GpuSample, ResourceSample, TimelineEvent
from agent2rl.core.grading_records import (
    EvalScore,
    ExampleResult,
    HeldoutComparison,
    Interval,
    Lineage,
    Submission,
)
from agent2rl.core.llm import LlmExchange, LlmUsage, TokenCounts
from agent2rl.core.records import Budget, Ending, RunResult, RunSpec, ScoringProtocol
from agent2rl.record import ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView, State
from tests.helpers.run_digests import make_digest, make_digests

START = 1000.0
CI = Interval(low=0, high=20, method="paired-bootstrap")


def score(value: float) -> EvalScore:
    return EvalScore(value=value, ci=CI, n=10, split="feedback")


def submission(number: int, at: float, value: float | None, lineage: Lineage = "derived") -> Submission:
    return Submission(
        id=number,
        path="output",
        accepted_at=START + at,
        verdict="rejected" if value is None else "scored",
        score=None if value is None else score(value),
        lineage=lineage,
        improvement=None if value is None else value - 20,
        grading_seconds=5.0,
    )


def answers(*scores: float) -> list[ExampleResult]:
    """In another order than that of their ids."""
    return [ExampleResult(id=f"e{i}", output="", score=each) for i, each in reversed([*enumerate(scores)])]


def recorded(
    *submissions: Submission,
    ending: Ending = "completed",
    state: State = "finished",
    protocol: ScoringProtocol = "default",
    usage: tuple[LlmExchange, ...] = (),
    used: LlmUsage | None = None,
    events: tuple[TimelineEvent, ...] = (),
) -> RecordedRun:
    spec = RunSpec(
        task="sums", agent="a", model="m", engine="e", budget=Budget(wall_seconds=100), protocol=protocol
    )
    scored = [each for each in submissions if each.score and each.lineage == "derived"]
    best = max(scored, key=lambda each: each.score.value if each.score else 0, default=None)
    heldout = HeldoutComparison(improvement=10.0, ci=CI) if best and protocol == "default" else None
    result = RunResult(
        run_id="r",
        spec=spec,
        ending=ending,
        started_at=START,
        ended_at=START + 100,
        baseline=score(20),
        best=best,
        baseline_heldout=score(30) if heldout else None,
        best_heldout=score(40) if heldout else None,
        heldout=heldout,
        score=40.0 if heldout else best.score.value if best and best.score else None,
        improvement=10.0 if heldout else best.improvement if best else None,
        usage=used,
    )
    view = RunView(
        paths=RunPaths(Path("runs/r")),
        spec=spec,
        state=state,
        result=result if state == "finished" else None,
        baseline=score(20),
        submissions=submissions,
        contamination=None,
        chain=ledger.LedgerReading((), None, False),
        notes=(),
    )
    told = (
        TimelineEvent(time=START, kind="started", data={}),
        *events,
        TimelineEvent(time=START + 90, kind="ended", data={}),
    )
    results = {"heldout": {0: answers(0, 1, 0.25)}, "feedback": {0: answers(0, 0)}}
    if best:
        results["heldout"][best.id], results["feedback"][best.id] = answers(1, 0, 0.5), answers(1, 1)
    return RecordedRun(view, told, timeline.read_timeline(told), usage, None, results, ())  # type: ignore[arg-type]


def findings(record: RecordedRun) -> Findings:
    split, best = record.view.spec.protocol, record.best
    name = "heldout" if split == "default" else "feedback"
    result = record.view.result
    found = (
        compare_examples(name, record.results[name][0], record.results[name][best.id], result.heldout, None)  # type: ignore[index]
        if best and result
        else None
    )
    attempt = AttemptFindings(
        number=1,
        began=0,
        ended=10,
        submission=best.id if best else None,
        outcome="improved",
        route=RouteVerdict(routes=("sft", "online-rl"), confidence=1.0),
    )
    return Findings(
        attempts=(attempt,),
        metrics=measure_run(record.view.submissions, score(20), record.timeline, 100),
        time=None,
        gain=found,
        compliance=Compliance(mode="free", verdict="free", message=""),
        contradictions=(),
        evidence=(),
        summary="",
    )


def digested(*submissions: Submission, **how: object) -> RunDigest:
    record = recorded(*submissions, **how)  # type: ignore[arg-type]
    return digest_run(record, findings(record))


def test_the_gain_is_the_held_out_improvement_of_the_submission_that_feedback_chose() -> None:
    found = digested(submission(1, 10, 35.0))
    assert (found.baseline, found.score, found.improvement, found.gain) == (30.0, 40.0, 10.0, 10.0)
    assert (found.chosen_gain, found.real, found.route) == (15.0, False, "sft + online-rl")
    assert found.compliance == "free"
    assert found.interval == CI


def test_under_the_papers_protocol_it_is_that_of_the_test_set_and_nobody_knows_whether_it_is_real() -> None:
    found = digested(submission(1, 10, 35.0), protocol="paper")
    assert (found.baseline, found.gain, found.real, found.succeeded) == (20.0, 15.0, None, None)
    assert found.differences == (1.0, 1.0)


def test_differences_are_in_the_order_of_sorted_ids() -> None:
    found = digested(submission(1, 10, 35.0))
    assert found.differences == (1.0, -1.0, 0.25)
    assert found.points.tolist() == [100.0, -100.0, 25.0]
    assert found.examples_sha256 == digested(submission(2, 20, 50.0)).examples_sha256
    assert found.examples_sha256 != digested(submission(1, 10, 35.0), protocol="paper").examples_sha256


def test_a_run_with_nothing_better_leaves_the_untouched_model_and_gains_nothing() -> None:
    worse = digested(submission(1, 10, 15.0))
    assert (worse.improvement, worse.gain, worse.succeeded) == (10.0, 0.0, False)
    none = digested(submission(1, 10, None))
    assert (none.improvement, none.gain, none.succeeded, none.submissions, none.scored) == (
        None,
        0.0,
        False,
        1,
        0,
    )
    assert digested().gain == 0.0


OURS = {"failed", "interrupted", "login-failed", "rate-limited", "driver-failed"}


@pytest.mark.parametrize("ending", get_args(Ending))
def test_what_the_agent_did_not_break_has_no_gain_and_what_it_broke_has(ending: Ending) -> None:
    found = digested(ending=ending)
    assert found.excluded == (ending if ending in OURS else None)
    assert found.gain == (None if ending in OURS else 0.0)


@pytest.mark.parametrize("state", ["running", "crashed"])
def test_a_run_without_a_result_has_no_gain(state: State) -> None:
    found = digested(submission(1, 10, 35.0), state=state)
    assert (found.excluded, found.gain, found.succeeded, found.ending) == (state, None, None, None)


def test_a_chosen_submission_that_was_never_ranked_has_no_gain() -> None:
    found = make_digest(None, chosen_gain=5.0)
    assert (found.excluded, found.gain) == ("not-graded", None)


@pytest.mark.parametrize("agent", ["submit", "submit:/models/final"])
def test_a_model_that_was_trained_elsewhere_is_no_gain_of_an_agent(agent: str) -> None:
    found = make_digest(60.0, agent=agent)
    assert (found.excluded, found.gain, found.succeeded) == ("trained-elsewhere", None, None)
    assert make_digest(60.0, agent="submitter").gain == 60.0


def test_the_curve_has_a_point_for_each_score_and_never_falls() -> None:
    found = digested(
        submission(1, 10, None),
        submission(2, 20, 25.0),
        submission(3, 30, 90.0, "foreign"),
        submission(4, 40, 22.0),
        submission(5, 50, 35.0),
    )
    assert [(point.spent.seconds, point.submissions, point.best) for point in found.curve] == [
        (25.0, 2, 5.0),
        (35.0, 3, 5.0),
        (45.0, 4, 5.0),
        (55.0, 5, 15.0),
    ]


def asked(at: float, tokens: int, usd: float | None) -> LlmExchange:
    return LlmExchange(
        at=START + at,
        wire="anthropic",
        model="m",
        path="/",
        stream=False,
        status=200,
        outcome="answered",
        seconds=2.0,
        tokens=TokenCounts(input=tokens),
        usd=usd,
    )


def test_what_was_spent_is_told_for_each_point() -> None:
    gpu = GpuSample(index=0, busy=0.5, memory_bytes=1)
    sample = ResourceSample(seconds=10, cores=1, resident_bytes=1, processes=1, gpus=(gpu, gpu)).model_dump(
        mode="json"
    )
    found = digested(
        submission(1, 20, 25.0),
        submission(2, 60, 35.0),
        usage=(asked(1, 100, 0.5), asked(23, 50, 0.25), asked(24, 1000, None)),
        events=(
            TimelineEvent(time=START + 15, kind="sample", data=sample),
            TimelineEvent(time=START + 18, kind="rollouts", data={"source": "claimed", "steps": 7}),
            TimelineEvent(time=START + 20, kind="submitted", data={"submission": {"id": 1}}),
            TimelineEvent(time=START + 25, kind="sample", data=sample),
            TimelineEvent(time=START + 25, kind="graded", data={"submission": {"id": 1}}),
            TimelineEvent(time=START + 40, kind="rollouts", data={"source": "witnessed", "steps": 3}),
        ),
    )
    first, last = (point.spent for point in found.curve)
    assert (first.tokens, first.usd, first.gpu_seconds, first.environment_steps) == (150, 0.75, 10.0, 7)
    assert (last.tokens, last.usd, last.gpu_seconds, last.environment_steps) == (1150, None, 10.0, 10)
    assert (found.total.seconds, found.total.tokens, found.total.usd) == (90.0, 1150, None)


@pytest.mark.parametrize(("busy", "expected"), [(0.5, 5.0), (None, None)])
def test_where_nobody_knows_gpu_time_is_unknown_and_not_nothing(
    busy: float | None, expected: float | None
) -> None:
    gpus = (GpuSample(index=0, busy=busy, memory_bytes=1),)
    sample = ResourceSample(seconds=10, cores=1, resident_bytes=1, processes=1, gpus=gpus).model_dump(
        mode="json"
    )
    assert digested().total.gpu_seconds is None
    told = digested(events=(TimelineEvent(time=START + 15, kind="sample", data=sample),))
    assert told.total.gpu_seconds == expected


def test_the_runs_own_sums_go_before_what_its_events_add_up_to() -> None:
    assert digested(usage=(asked(1, 100, 0.5),)).total.usd == 0.5
    told = digested(usage=(asked(1, 100, 0.5),), used=LlmUsage(tokens=TokenCounts(input=120), usd=0.6)).total
    assert (told.tokens, told.usd) == (120, 0.6)
    assert digested(used=LlmUsage(tokens=TokenCounts(input=120), usd=None)).total.usd is None
    assert digested(used=LlmUsage(usd=None)).total.usd == 0.0


def test_a_digest_is_small_and_comes_back_as_it_was() -> None:
    found = digested(*(submission(number, 5.0 * number, 20.0 + number) for number in range(1, 16)))
    text = found.model_dump_json()
    assert len(text) < 5000
    assert RunDigest.model_validate_json(text) == found


def test_runs_without_a_gain_are_counted_by_why() -> None:
    ended = ["failed", "completed", "rate-limited", "failed"]
    assert count_excluded([make_digest(ending=each) for each in ended]) == {"failed": 2, "rate-limited": 1}


def test_groups_are_by_any_fields() -> None:
    found = group_by([*make_digests([1, 2], driver="x"), *make_digests([3])], ("driver", "seed"))
    assert {key: len(members) for key, members in found.items()} == {
        ("", "0"): 1,
        ("x", "0"): 1,
        ("x", "1"): 1,
    }
