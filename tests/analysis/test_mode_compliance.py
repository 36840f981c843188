"""Whether the best weights came about as the mode allows."""

from typing import get_args

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
        ("rl-oriented", ("sft", "policy-gradient"), "kept"),
        ("rl-oriented", ("sft", "online-rl"), "kept"),
        ("rl-oriented", ("policy-gradient",), "kept"),
        ("rl-oriented", ("sft", "rejection"), "kept"),
        ("rl-oriented", ("sft", "preference"), "kept"),
        ("rl-oriented", ("other", "policy-gradient"), "kept"),
        ("rl-oriented", ("none",), "kept"),
        ("rl-oriented", ("sft",), "broken"),
        ("rl-oriented", ("policy-gradient", "sft"), "broken"),
        ("rl-oriented", ("sft", "policy-gradient", "sft"), "broken"),
        ("rl-oriented", ("other", "sft"), "broken"),
        ("rl-oriented", ("policy-gradient", "other"), "unknown"),
        ("rl-oriented", ("unknown",), "unknown"),
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


def test_a_model_that_ends_with_its_warm_up_says_what_its_last_stage_was() -> None:
    found = check_compliance("rl-oriented", by("policy-gradient", "sft"), "derived", EvidenceBook())
    assert found.message == (
        "The best weights were trained by policy-gradient + sft. Their last stage is sft, but rl-oriented "
        "requires reinforcement learning as the last stage."
    )


@pytest.mark.parametrize(("mode", "routes"), [("rl-only", ("sft",)), ("rl-oriented", ("sft",))])
def test_an_unsure_route_breaks_nothing(mode: Mode, routes: tuple[str, ...]) -> None:
    unsure = by(*routes, confidence=0.45)
    assert check_compliance(mode, unsure, "derived", EvidenceBook()).verdict == "unknown"


def test_without_a_best_submission_nothing_is_known() -> None:
    assert check_compliance("sft-only", None, "unknown", EvidenceBook()).verdict == "unknown"


@pytest.mark.parametrize("mode", ["sft-only", "rl-oriented", "rl-only"])
def test_a_copy_keeps_every_mode(mode: Mode) -> None:
    assert check_compliance(mode, by("sft"), "copied", EvidenceBook()).verdict == "kept"


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


def test_every_mode_is_in_the_instructions_and_has_a_rule() -> None:
    assert {*FORBIDDEN, "free", "multi"} == {*MODES} == {*get_args(Mode)}
