"""Runs side by side: settings that differ, their courses, and examples that flipped between two of them."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.analysis.gain import mcnemar
from agent2rl.core.records import ExampleResult, Split
from agent2rl.dashboard.run import Standing, answers
from agent2rl.report import drawing, images, words
from agent2rl.report.colours import BASE, SERIES
from agent2rl.report.drawing import STYLE, Margins

MOST_RUNS = 6
MOST_FLIPS = 200
DIFFERENT = 1e-9
_DRAWING = threading.Lock()
"""The style is one for the whole process."""


@dataclass(frozen=True)
class Flip:
    id: str
    group: str
    first: ExampleResult
    second: ExampleResult


@dataclass(frozen=True)
class Flips:
    """The best submissions of two runs on the same examples."""

    split: Split
    both: int
    better: int
    """For the second."""
    worse: int
    p_value: float | None
    """None where scores are not right or wrong."""
    shown: tuple[Flip, ...]


def differing(runs: Sequence[Standing]) -> list[tuple[str, list[str]]]:
    """Settings that are not the same in all runs."""
    specs = [each.view.spec.model_dump(mode="json") for each in runs]
    names = [name for name in specs[0] if len({str(spec.get(name)) for spec in specs}) > 1]
    return [(name.replace("_", " "), [words.value(spec.get(name)) for spec in specs]) for name in names]


def flips(first: Standing, second: Standing) -> Flips | None:
    """On the split that ranks where both were graded there, else on the one that answered."""
    for split in ("heldout", "feedback"):
        sides = [_best(each, split) for each in (first, second)]
        both = [name for name in sides[0] if name in sides[1]]
        if both:
            return _flips(split, [(sides[0][name], sides[1][name]) for name in both])
    return None


def _best(run: Standing, split: Split) -> dict[str, ExampleResult]:
    best = run.best
    if best is None:
        return {}
    found = answers(run.view.paths, best.id, split) or answers(run.view.paths, best.same_as or 0, split)
    return {each.id: each for each in found}


def _flips(split: Split, pairs: Sequence[tuple[ExampleResult, ExampleResult]]) -> Flips:
    changes = [(new.score - old.score, old, new) for old, new in pairs]
    better = sum(change > DIFFERENT for change, _, _ in changes)
    worse = sum(change < -DIFFERENT for change, _, _ in changes)
    exact = all(each.score in (0.0, 1.0) for pair in pairs for each in pair)
    flipped = sorted(
        (each for each in changes if abs(each[0]) > DIFFERENT), key=lambda each: (each[0], each[1].id)
    )
    return Flips(
        split=split,
        both=len(pairs),
        better=better,
        worse=worse,
        p_value=mcnemar(better, worse) if exact else None,
        shown=tuple(Flip(old.id, old.group, old, new) for _, old, new in flipped[:MOST_FLIPS]),
    )


def courses(runs: Sequence[Standing]) -> dict[str, str]:
    """Scores of the submissions of all runs over time, as SVG for desks and telephones."""
    with _DRAWING, mpl.rc_context(STYLE):
        figures = {
            "courses": _courses(runs, narrow=False),
            "courses" + images.NARROW: _courses(runs, narrow=True),
        }
    return images.texts({name: figure for name, figure in figures.items() if figure})


def _courses(runs: Sequence[Standing], narrow: bool) -> Figure | None:
    known = [(at, each) for at, each in enumerate(runs) if each.scored and each.began is not None]
    if not known:
        return None
    figure, (axes,) = drawing.panels(
        drawing.NARROW if narrow else drawing.WIDE, 3.2, margins=Margins(top=0.12 + 0.165 * (len(known) + 1))
    )
    ends = [one.accepted_at - (run.began or 0.0) for _, run in known for one in run.view.submissions]
    seconds = drawing.time_axis(axes, max(ends) * 1.02, narrow)
    for at, run in known:
        colour = SERIES[at % len(SERIES)]
        points = [
            ((one.accepted_at - (run.began or 0.0)) / seconds, one.score)
            for one in run.view.submissions
            if one.score
        ]
        values = [score.value for _, score in points]
        low = [max(0.0, score.value - score.ci.low) for _, score in points]
        high = [max(0.0, score.ci.high - score.value) for _, score in points]
        label = words.drawable(f"{at + 1}: {run.view.paths.run_id}", 60)
        places = [place for place, _ in points]
        axes.errorbar(
            places, values, [low, high], fmt="o-", color=colour, markersize=4, elinewidth=1, label=label
        )
        if run.view.baseline:
            label = "_" if at != known[0][0] else "untouched" + (" models" if len(known) > 1 else " model")
            value = run.view.baseline.value
            axes.axhline(value, color=BASE, linestyle=(0, (4, 3)), linewidth=0.9, label=label)
    axes.set_ylabel("score, %")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    drawing.legend(axes, 1)
    return figure
