"""Training that went wrong by its own figures, and training whose reward is not the task's."""

from collections.abc import Sequence

from agent2rl.analysis.evidence import EvidenceBook
from agent2rl.analysis.failures.curve_trends import (
    CurveTrend,
    find_crossing,
    find_nan,
    has_exploded,
    is_constant,
    list_values,
    measure_trend,
)
from agent2rl.analysis.findings import Failure, PrintedCurve

LOSSES = ("loss", "eval_loss")
REWARDS = ("reward", "score", "success_rate")
"""As trainings call what they raise."""
RISE = 0.3
"""Of a loss that matters, whatever its noise; the loss of policy gradients is smaller than that."""


def find_divergence(curves: Sequence[PrintedCurve], book: EvidenceBook) -> list[Failure]:
    """At most one for each training's series; what a later training did without counts less."""
    found = []
    for place, curve in enumerate(curves):
        told = (
            _detect_nan(curve)
            or _detect_explosion(curve)
            or _detect_loss_rise(curve, curves)
            or _detect_collapse(curve, curves)
        )
        if told:
            message, confidence = told
            again = any(other.name == curve.name for other in curves[place + 1 :])
            cited = book.add_evidence("log", curve.where, message)
            confidence = 0.5 * confidence if again else confidence
            found.append(Failure(kind="diverged", message=message, confidence=confidence, evidence=(cited,)))
    return sorted(found, key=lambda each: -each.confidence)[:3]


def _detect_nan(curve: PrintedCurve) -> tuple[str, float] | None:
    gap = find_nan(curve)
    if gap is None or curve.name not in (*LOSSES, *REWARDS, "grad_norm", "kl"):
        return None
    step, stayed = gap
    known = 0.95 if curve.name in LOSSES else 0.8
    if stayed:
        return f"The {curve.name} is no number any more from step {step:g} on.", known
    return f"The {curve.name} was no number at step {step:g}, and one again later.", 0.35


def _detect_explosion(curve: PrintedCurve) -> tuple[str, float] | None:
    limits = {"loss": (10.0, 5.0), "grad_norm": (50.0, 100.0), "kl": (20.0, 10.0)}
    if curve.name not in limits:
        return None
    values = list_values(curve)
    times, least = limits[curve.name]
    if not has_exploded(values, times, least):
        return None
    at = find_crossing(curve, max(times * abs(values[0]) / 3, least / 3))
    said = f"The {curve.name} grew from {values[0]:.4g} to {values[-1]:.4g}, from step {at:g} on."
    return said, 0.85 if curve.name == "loss" else 0.6


def _detect_loss_rise(curve: PrintedCurve, curves: Sequence[PrintedCurve]) -> tuple[str, float] | None:
    """A loss that went up and stayed; where a reward went up with it, that is how rewards are won."""
    if curve.name != "loss" or (course := measure_trend(curve)) is None:
        return None
    limit = course.before + max(4 * course.noise, 0.5 * abs(course.before), RISE)
    if course.after <= limit or any(one.rises for one in _measure_trends(REWARDS, curves)):
        return None
    at = find_crossing(curve, (course.before + course.after) / 2)
    said = f"The loss rose from {course.before:.4g} to {course.after:.4g} and stayed, from step {at:g} on."
    return said, 0.8


def _detect_collapse(curve: PrintedCurve, curves: Sequence[PrintedCurve]) -> tuple[str, float] | None:
    if (course := measure_trend(curve)) is None:
        return None
    if curve.name in REWARDS:
        fall, scale = -course.change, max(abs(course.before), abs(course.after))
        if fall > max(6 * course.error, 3 * course.noise, 0.5 * scale, 0.02) and course.steady <= -0.4:
            return f"The {curve.name} fell from {course.before:.4g} to {course.after:.4g} and stayed.", 0.65
    if curve.name == "entropy" and course.before > 0 and abs(course.after) < min(0.05, 0.1 * course.before):
        rewards = _measure_trends(REWARDS, curves)
        if rewards and not any(one.rises for one in rewards):
            return (
                f"The entropy fell from {course.before:.4g} to {course.after:.4g}, and no reward rose.",
                0.6,
            )
    return None


def _measure_trends(names: Sequence[str], curves: Sequence[PrintedCurve]) -> list[CurveTrend]:
    return [course for each in curves if each.name in names and (course := measure_trend(each))]


def find_risen_reward(curves: Sequence[PrintedCurve]) -> tuple[PrintedCurve, CurveTrend] | None:
    """The reward of a training that clearly rose, the clearest of them."""
    found = [
        (each, one) for each in curves if each.name in REWARDS and (one := measure_trend(each)) and one.rises
    ]
    return max(found, key=lambda pair: pair[1].change / max(pair[1].error, 1e-9), default=None)


def find_flat_reward(curves: Sequence[PrintedCurve]) -> PrintedCurve | None:
    """A reward that was the same all along, or whose spread or advantage was 0: nothing to learn from."""
    for each in curves:
        values = list_values(each)
        flat = each.name == "reward" and len(values) >= LEAST_FLAT and is_constant(values)
        spread = each.name in ("reward_std", "advantage") and len(values) >= LEAST_FLAT
        if flat or (spread and is_constant(values) and abs(values[0]) < 1e-9):
            return each
    return None


LEAST_FLAT = 6
"""Points from which on a constant is no chance."""
