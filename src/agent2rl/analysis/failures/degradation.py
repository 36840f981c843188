"""Detect training that made the model worse: diverged curves, a reward unlike the task's, lost formats.

What an evaluator would accept is not known here. A format mark counts if correct answers have it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import median

from agent2rl.analysis.findings import EvidenceBook, Failure, PrintedCurve
from agent2rl.core.grading_records import ExampleResult, TrajectoryTurn

# Trends of a curve, by medians, so that single points decide nothing.

LEAST_POINTS = 8
"""Least number of points for a trend."""
NORMAL = 0.6745
"""The median deviation of a normal variable, in standard deviations."""


@dataclass(frozen=True)
class CurveTrend:
    before: float
    """Median of the first fifth."""
    after: float
    """Median of the last fifth."""
    noise: float
    """Standard deviation of single points around the trend."""
    error: float
    """Standard error of after - before."""
    steady: float
    """Share of pairs of fifths that rise minus share that fall, from -1 to 1."""

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def rises(self) -> bool:
        """Whether the curve rises clearly, and by an amount that matters."""
        scale = max(abs(self.before), abs(self.after))
        return self.change > max(4 * self.error, 0.1 * scale, 1e-9) and self.steady >= 0.4


def measure_trend(curve: PrintedCurve) -> CurveTrend | None:
    values = list_values(curve)
    if len(values) < LEAST_POINTS:
        return None
    fifth = max(2, len(values) // 5)
    before, after = median(values[:fifth]), median(values[-fifth:])
    # Neighbouring points differ by noise only, whatever the trend.
    noise = median(abs(b - a) for a, b in pairwise(values)) / (NORMAL * sqrt(2))
    # The standard error of a median is 1.2533 times that of a mean.
    error = 1.2533 * noise * sqrt(2 / fifth)
    cuts = [round(each * len(values) / 5) for each in range(6)]
    fifths = [median(values[low:high]) for low, high in pairwise(cuts)]
    pairs = [(b > a) - (b < a) for place, a in enumerate(fifths) for b in fifths[place + 1 :]]
    return CurveTrend(before, after, noise, error, sum(pairs) / len(pairs))


def list_values(curve: PrintedCurve) -> list[float]:
    return [value for _, value in curve.points if value is not None]


def find_nan(curve: PrintedCurve) -> tuple[float, bool] | None:
    """Return the first step with a value that is not finite, and whether the values stay so."""
    gaps = [place for place, (_, value) in enumerate(curve.points) if value is None]
    if not gaps:
        return None
    first = gaps[0]
    rest = len(curve.points) - first
    return curve.points[first][0], curve.points[-1][1] is None or 2 * len(gaps) > rest


def find_crossing(curve: PrintedCurve, limit: float) -> float:
    """Return the step from which on the median of five points stays above a limit."""
    points = [(step, value) for step, value in curve.points if value is not None]
    values = [value for _, value in points]
    place = len(points) - 1
    while place > 0 and median(values[max(0, place - 2) : place + 3]) > limit:
        place -= 1
    return points[min(place + 1, len(points) - 1)][0]


def has_exploded(values: Sequence[float], times: float, least: float) -> bool:
    """Whether values end far above their start and near their maximum. Needs three points."""
    if len(values) < 3:
        return False
    first = max(abs(median(values[: max(1, len(values) // 5)])), least / times)
    return values[-1] > times * first and values[-1] >= 0.2 * max(values)


def is_constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= 1e-9 * max(1.0, abs(values[0]))


# Training that went wrong by its own metrics, and training with a reward unlike the task's.

LOSSES = ("loss", "eval_loss")
REWARDS = ("reward", "score", "success_rate")
"""Names of metrics that training maximises."""
RISE = 0.3
"""Least rise of a loss that matters, whatever its noise. Policy-gradient losses are smaller than this."""


def find_divergence(curves: Sequence[PrintedCurve], book: EvidenceBook) -> list[Failure]:
    """Return at most one failure for each curve. It counts less if a later training has the same curve."""
    failures = []
    for index, curve in enumerate(curves):
        detected = (
            _detect_nan(curve)
            or _detect_explosion(curve)
            or _detect_loss_rise(curve, curves)
            or _detect_collapse(curve, curves)
        )
        if detected:
            message, confidence = detected
            is_repeated = any(other.name == curve.name for other in curves[index + 1 :])
            evidence = book.add_evidence("log", curve.where, message)
            confidence = 0.5 * confidence if is_repeated else confidence
            failures.append(
                Failure(kind="diverged", message=message, confidence=confidence, evidence=(evidence,))
            )
    return sorted(failures, key=lambda each: -each.confidence)[:3]


def _detect_nan(curve: PrintedCurve) -> tuple[str, float] | None:
    gap = find_nan(curve)
    if gap is None or curve.name not in (*LOSSES, *REWARDS, "grad_norm", "kl"):
        return None
    step, stayed = gap
    confidence = 0.95 if curve.name in LOSSES else 0.8
    if stayed:
        return f"The {curve.name} is not finite from step {step:g} on.", confidence
    return f"The {curve.name} was not finite at step {step:g}, but recovered later.", 0.35


def _detect_explosion(curve: PrintedCurve) -> tuple[str, float] | None:
    limits = {"loss": (10.0, 5.0), "grad_norm": (50.0, 100.0), "kl": (20.0, 10.0)}
    if curve.name not in limits:
        return None
    values = list_values(curve)
    times, least = limits[curve.name]
    if not has_exploded(values, times, least):
        return None
    at = find_crossing(curve, max(times * abs(values[0]) / 3, least / 3))
    message = f"The {curve.name} grew from {values[0]:.4g} to {values[-1]:.4g}, from step {at:g} on."
    return message, 0.85 if curve.name == "loss" else 0.6


def _detect_loss_rise(curve: PrintedCurve, curves: Sequence[PrintedCurve]) -> tuple[str, float] | None:
    """Detect a loss that rose and stayed high. If a reward rose with it, that is normal for RL."""
    if curve.name != "loss" or (trend := measure_trend(curve)) is None:
        return None
    limit = trend.before + max(4 * trend.noise, 0.5 * abs(trend.before), RISE)
    if trend.after <= limit or any(reward.rises for reward in _measure_trends(REWARDS, curves)):
        return None
    at = find_crossing(curve, (trend.before + trend.after) / 2)
    message = (
        f"The loss rose from {trend.before:.4g} to {trend.after:.4g} and stayed high from step {at:g} on."
    )
    return message, 0.8


def _detect_collapse(curve: PrintedCurve, curves: Sequence[PrintedCurve]) -> tuple[str, float] | None:
    if (trend := measure_trend(curve)) is None:
        return None
    if curve.name in REWARDS:
        fall, scale = -trend.change, max(abs(trend.before), abs(trend.after))
        if fall > max(6 * trend.error, 3 * trend.noise, 0.5 * scale, 0.02) and trend.steady <= -0.4:
            return (
                f"The {curve.name} fell from {trend.before:.4g} to {trend.after:.4g} and stayed low.",
                0.65,
            )
    if curve.name == "entropy" and trend.before > 0 and abs(trend.after) < min(0.05, 0.1 * trend.before):
        rewards = _measure_trends(REWARDS, curves)
        if rewards and not any(reward.rises for reward in rewards):
            return (
                f"The entropy fell from {trend.before:.4g} to {trend.after:.4g}, and no reward rose.",
                0.6,
            )
    return None


def _measure_trends(names: Sequence[str], curves: Sequence[PrintedCurve]) -> list[CurveTrend]:
    return [trend for curve in curves if curve.name in names and (trend := measure_trend(curve))]


def find_risen_reward(curves: Sequence[PrintedCurve]) -> tuple[PrintedCurve, CurveTrend] | None:
    """Return the reward curve that rose most clearly, if any did."""
    risen = [
        (curve, trend)
        for curve in curves
        if curve.name in REWARDS and (trend := measure_trend(curve)) and trend.rises
    ]
    return max(risen, key=lambda pair: pair[1].change / max(pair[1].error, 1e-9), default=None)


def find_flat_reward(curves: Sequence[PrintedCurve]) -> PrintedCurve | None:
    """Return a reward curve without a learning signal: a constant reward, or a spread or advantage of 0."""
    for each in curves:
        values = list_values(each)
        flat = each.name == "reward" and len(values) >= LEAST_FLAT and is_constant(values)
        spread = each.name in ("reward_std", "advantage") and len(values) >= LEAST_FLAT
        if flat or (spread and is_constant(values) and abs(values[0]) < 1e-9):
            return each
    return None


LEAST_FLAT = 6
"""Least number of points for a constant curve to be no coincidence."""


# Outputs that lost their format: empty, without the mark of correct answers, repetitive, too long, or no
# valid action in the environment. Each share is compared with the outputs of the untouched model.

MARKS = ("####", "\\boxed{", "<answer>", "```", "Action:", "answer[", "The answer is", "Final answer")
NOTED = re.compile(
    r"\b(?:SyntaxError|IndentationError|TabError|no answer|no action|no more actions|not be parsed|unparsed"
    r"|outgrew the model's context|truncated|cut off|empty)\b",
    re.IGNORECASE,
)
REFUSED = ("nothing happens", "there is no action", "invalid action", "unknown action", "not a valid action")
"""How environments answer an invalid action, in records that do not mark these."""
SHOWN = 4000
"""Number of characters of an output that are examined."""
WINDOW = 12
LEAST_EXAMPLES = 8
"""Least number of examples for shares to count."""
MORE = 0.2
"""Least growth of a share."""
CERTAIN = 3.0
"""Least growth in standard errors."""


@dataclass(frozen=True)
class OutputDrift:
    what: str
    """A predicate such as `are empty`."""
    before: float | None
    """None: the untouched model's outputs are not known."""
    after: float
    examples: tuple[ExampleResult, ...]
    """Some examples with this trait."""


def find_drift(before: Sequence[ExampleResult], after: Sequence[ExampleResult]) -> OutputDrift | None:
    """Return the trait that grew most, if any grew clearly."""
    if len(after) < LEAST_EXAMPLES:
        return None
    drifts = [
        drift
        for what, shows in _list_traits(before, after).items()
        if (drift := _measure_growth(what, shows, before, after))
    ]
    return max(drifts, key=lambda drift: drift.after - (drift.before or 0.0), default=None)


def _measure_growth(
    what: str,
    shows: Callable[[ExampleResult], bool],
    before: Sequence[ExampleResult],
    after: Sequence[ExampleResult],
) -> OutputDrift | None:
    showing = [each for each in after if shows(each)]
    share = len(showing) / len(after)
    if len(before) < LEAST_EXAMPLES:
        return OutputDrift(what, None, share, tuple(showing[:3])) if share >= 0.5 else None
    share_before = sum(map(shows, before)) / len(before)
    pooled = (share_before * len(before) + share * len(after)) / (len(before) + len(after))
    error = sqrt(pooled * (1 - pooled) * (1 / len(before) + 1 / len(after)))
    if share - share_before < max(MORE, CERTAIN * error):
        return None
    return OutputDrift(what, share_before, share, tuple(showing[:3]))


def _list_traits(
    before: Sequence[ExampleResult], after: Sequence[ExampleResult]
) -> dict[str, Callable[[ExampleResult], bool]]:
    traits: dict[str, Callable[[ExampleResult], bool]] = {
        "are empty": lambda result: not result.output.strip() and len(result.trajectory) < 2,
        "repeat themselves": lambda result: is_repetitive(result.output),
        "could not be read": lambda result: bool(NOTED.search(result.note)),
        "lead to no valid action": lambda result: _share_refused(result) >= 0.5,
    }
    if len(before) >= LEAST_EXAMPLES:
        lengths = sorted(len(result.output) for result in before)
        limit = max(2 * lengths[int(0.95 * (len(lengths) - 1))], 400)
        traits["are much too long"] = lambda result: len(result.output) > limit
        for mark in MARKS:
            if _is_mark_expected(mark, before, after):
                traits[f"have no {mark}"] = lambda result, mark=mark: mark not in result.output  # type: ignore[misc]
    return traits


def _is_mark_expected(mark: str, before: Sequence[ExampleResult], after: Sequence[ExampleResult]) -> bool:
    """Whether correct answers have a mark. If there are none, whether most earlier outputs had it."""
    right = [mark in one.output for one in (*before, *after) if one.score >= 1 and len(one.trajectory) < 2]
    if right:
        return sum(right) >= 0.9 * len(right)
    return sum(mark in one.output for one in before) >= 0.5 * len(before)


def is_repetitive(text: str) -> bool:
    """Whether a text repeats itself: few of its windows are distinct."""
    shown = text[:SHOWN]
    count = len(shown) - WINDOW + 1
    if count < 150:
        return False
    return len({shown[place : place + WINDOW] for place in range(count)}) < 0.3 * count


def _share_refused(result: ExampleResult) -> float:
    """Return the share of turns that the environment refused."""
    turns = result.trajectory[1:]
    if not turns:
        return 0.0
    return sum(map(_is_refused, turns)) / len(turns)


def _is_refused(turn: TrajectoryTurn) -> bool:
    if turn.invalid is not None:
        return turn.invalid
    return turn.observation.strip().lower().startswith(REFUSED) or not turn.action.strip()
