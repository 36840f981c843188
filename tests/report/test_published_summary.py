"""How attempts become lines of the published summary.jsonl."""

import json
from typing import Any

import pytest

from agent2rl.analysis.findings import (
    AttemptFindings,
    Evidence,
    Failure,
    FailureKind,
    Findings,
    Route,
    RouteVerdict,
)
from agent2rl.core.grading_records import Submission
from agent2rl.report.published_summary import PUBLISHED_SUMMARY, build_summary_rows, render_summary

STARTED = 1_790_000_000.0


def make_findings(*attempts: AttemptFindings, evidence: str = "") -> Findings:
    pieces = (Evidence(id="E1", kind="code", where="train.py:1", text=evidence),)
    fields: dict[str, Any] = {"attempts": attempts, "evidence": pieces}
    return Findings.model_construct(None, **fields)


def make_attempt(**known: object) -> AttemptFindings:
    fields = {"number": 1, "began": 0.0, "ended": 812.4, "outcome": "not-submitted", **known}
    return AttemptFindings.model_validate(fields)


def test_a_line_has_the_published_fields_and_null_where_nothing_is_known() -> None:
    submission = Submission(id=1, path="m", accepted_at=STARTED + 815)
    scored = make_attempt(
        submission=1,
        score=65.0,
        gain=20.0,
        outcome="improved",
        route=RouteVerdict(routes=("sft",), confidence=1.0),
    )
    unsent = make_attempt(
        number=2, began=812.4, ended=900.0, route=RouteVerdict(routes=("unknown",), confidence=0.2)
    )
    idle = make_attempt(number=3, began=900.0, ended=901.0)
    text = render_summary(make_findings(scored, unsent, idle), [submission], STARTED)
    first, second = (json.loads(line) for line in text.splitlines())
    assert tuple(first) == PUBLISHED_SUMMARY
    assert list(first.values()) == [1, "2026-09-21 14:26", 812, "success", None, 65.0, 20.0, "SFT", None]
    assert list(second.values()) == [
        2,
        "2026-09-21 14:28",
        88,
        "failed",
        None,
        None,
        None,
        "unknown",
        "unknown",
    ]


def test_an_attempt_that_is_still_graded_has_neither_failed_nor_succeeded() -> None:
    (row,) = build_summary_rows(make_findings(make_attempt(submission=1, outcome="waiting")), [], None)
    assert (row["status"], row["failure_type"], row["timestamp"]) == (None, None, None)


@pytest.mark.parametrize(
    ("routes", "evidence", "expected"),
    [
        (("none",), "", "copy_model"),
        (("rejection",), "", "SFT"),
        (("sft", "policy-gradient"), "trainer = GRPOTrainer(", "SFT+GRPO"),
        (("online-rl",), "ppo_epochs = 2", "PPO"),
        (("online-rl",), "GRPO or PPO", "RL"),
        (("policy-gradient",), "loss = -(logp * advantage)", "RL"),
        (("preference",), "DPOTrainer(", "DPO"),
        (("preference",), "", "preference"),
        (("sft", "rejection"), "", "SFT"),
    ],
)
def test_a_route_has_the_published_name_where_the_evidence_has_one(
    routes: tuple[Route, ...], evidence: str, expected: str
) -> None:
    verdict = RouteVerdict(routes=routes, confidence=1.0, evidence=("E1",))
    (row,) = build_summary_rows(make_findings(make_attempt(route=verdict), evidence=evidence), [], STARTED)
    assert row["train_type"] == expected


@pytest.mark.parametrize(
    ("kind", "submission", "expected"),
    [
        ("code-error", None, "code_error_runtime"),
        ("rollout-logic", 1, "rollout_logic_wrong"),
        ("timeout", None, "timeout_no_submission"),
        ("timeout", 1, "timeout"),
        ("copied", 1, "copy_model_fallback"),
        ("diverged", 1, "training_diverged"),
        ("out-of-memory", None, "out_of_memory"),
    ],
)
def test_a_failure_has_the_published_name_where_there_is_one(
    kind: FailureKind, submission: int | None, expected: str
) -> None:
    attempt = make_attempt(
        submission=submission,
        route=RouteVerdict(routes=("sft",), confidence=1.0),
        failures=(Failure(kind=kind, message="it failed", confidence=1.0),),
    )
    (row,) = build_summary_rows(make_findings(attempt), [], STARTED)
    assert row["failure_type"] == expected
