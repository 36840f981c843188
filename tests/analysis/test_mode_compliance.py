"""Whether the best weights came about as the mode allows."""

import pytest

from agent2rl.analysis.findings import EvidenceBook, RouteVerdict
from agent2rl.analysis.mode_compliance import FORBIDDEN, check_compliance
from agent2rl.core.records import Mode
from agent2rl.run.workspace import MODES


def by(*names: str, confidence: float = 0.9) -> RouteVerdict:
    return RouteVerdict.model_validate({"routes": names, "confidence": confidence, "evidence": ["E1"]})


@pytest.mark.parametrize(
    ("mode", "routes", "verdict"),
    [
        ("rl-only", ("sft",), "broken"),
        ("rl-only", ("sft", "policy-gradient"), "broken"),
        ("rl-only", ("policy-gradient",), "kept"),
        ("rl-only", ("online-rl",), "kept"),
        ("rl-only", ("rejection", "policy-gradient"), "kept"),
        ("rl-only", ("preference",), "kept"),
        ("rl-only", ("other",), "unknown"),
        ("rl-only", ("unknown",), "unknown"),
        ("rl-only", ("none",), "kept"),
        ("sft-only", ("sft",), "kept"),
        ("sft-only", ("sft", "policy-gradient"), "broken"),
        ("sft-only", ("online-rl",), "broken"),
        ("sft-only", ("rejection",), "broken"),
        ("sft-only", ("preference",), "broken"),
        ("sft-only", ("sft", "other"), "unknown"),
        ("free", ("sft", "online-rl"), "free"),
        ("multi", ("sft",), "free"),
    ],
)
def test_each_mode_allows_what_its_words_say(mode: Mode, routes: tuple[str, ...], verdict: str) -> None:
    found = check_compliance(mode, by(*routes), "derived", EvidenceBook())
    assert found.verdict == verdict
    assert verdict == "free" or found.evidence == ("E1",)


def test_a_broken_mode_says_by_what() -> None:
    found = check_compliance("rl-only", by("sft"), "derived", EvidenceBook())
    assert found.message == "The best weights were trained by sft alone, but rl-only forbids sft."


def test_an_unsure_route_breaks_nothing() -> None:
    assert (
        check_compliance("rl-only", by("sft", confidence=0.45), "derived", EvidenceBook()).verdict
        == "unknown"
    )


def test_without_a_best_submission_nothing_is_known() -> None:
    assert check_compliance("sft-only", None, "unknown", EvidenceBook()).verdict == "unknown"


def test_a_copy_keeps_every_mode() -> None:
    assert check_compliance("rl-only", by("sft"), "copied", EvidenceBook()).verdict == "kept"


@pytest.mark.parametrize(
    ("submitted", "verdict"),
    [
        ([by("sft"), by("policy-gradient")], "kept"),
        ([by("sft", "policy-gradient")], "kept"),
        ([by("sft"), by("sft")], "broken"),
        ([by("policy-gradient"), by("online-rl")], "broken"),
        ([by("sft"), by("unknown", confidence=0.2)], "unknown"),
    ],
)
def test_multi_wants_submissions_of_more_than_one_paradigm(
    submitted: list[RouteVerdict], verdict: str
) -> None:
    assert (
        check_compliance("multi", submitted[0], "derived", EvidenceBook(), submitted=submitted).verdict
        == verdict
    )


def test_every_mode_that_agents_are_told_of_is_known_here() -> None:
    assert {*FORBIDDEN, "free", "multi"} == {*MODES}
