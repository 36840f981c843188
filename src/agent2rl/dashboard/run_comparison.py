"""Runs side by side: settings that differ, and examples that flipped between two of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent2rl.analysis.gain import mcnemar
from agent2rl.core.records import ExampleResult, Split
from agent2rl.dashboard.run_status import LiveRunStatus, read_answers
from agent2rl.report import formatting

MOST_RUNS = 6
MOST_FLIPS = 200
DIFFERENT = 1e-9


@dataclass(frozen=True)
class AnswerFlip:
    id: str
    group: str
    first: ExampleResult
    second: ExampleResult


@dataclass(frozen=True)
class AnswerFlips:
    """The best submissions of two runs on the same examples."""

    split: Split
    both: int
    better: int
    """For the second."""
    worse: int
    p_value: float | None
    """None where scores are not right or wrong."""
    shown: tuple[AnswerFlip, ...]


def list_differing_settings(runs: Sequence[LiveRunStatus]) -> list[tuple[str, list[str]]]:
    """Settings that are not the same in all runs."""
    specs = [each.view.spec.model_dump(mode="json") for each in runs]
    names = [name for name in specs[0] if len({str(spec.get(name)) for spec in specs}) > 1]
    return [
        (name.replace("_", " "), [formatting.format_setting(spec.get(name)) for spec in specs])
        for name in names
    ]


def compare_best_answers(first: LiveRunStatus, second: LiveRunStatus) -> AnswerFlips | None:
    """On the split that ranks where both were graded there, else on the one that answered."""
    for split in ("heldout", "feedback"):
        sides = [_read_best_answers(each, split) for each in (first, second)]
        both = [name for name in sides[0] if name in sides[1]]
        if both:
            return _count_flips(split, [(sides[0][name], sides[1][name]) for name in both])
    return None


def _read_best_answers(run: LiveRunStatus, split: Split) -> dict[str, ExampleResult]:
    best = run.best
    if best is None:
        return {}
    found = read_answers(run.view.paths, best.id, split) or read_answers(
        run.view.paths, best.same_as or 0, split
    )
    return {each.id: each for each in found}


def _count_flips(split: Split, pairs: Sequence[tuple[ExampleResult, ExampleResult]]) -> AnswerFlips:
    changes = [(new.score - old.score, old, new) for old, new in pairs]
    better = sum(change > DIFFERENT for change, _, _ in changes)
    worse = sum(change < -DIFFERENT for change, _, _ in changes)
    exact = all(each.score in (0.0, 1.0) for pair in pairs for each in pair)
    flipped = sorted(
        (each for each in changes if abs(each[0]) > DIFFERENT), key=lambda each: (each[0], each[1].id)
    )
    return AnswerFlips(
        split=split,
        both=len(pairs),
        better=better,
        worse=worse,
        p_value=mcnemar(better, worse) if exact else None,
        shown=tuple(AnswerFlip(old.id, old.group, old, new) for _, old, new in flipped[:MOST_FLIPS]),
    )
