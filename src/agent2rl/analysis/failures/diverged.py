"""Training that went wrong by its own figures, and training whose reward is not the task's."""

from collections.abc import Sequence

from agent2rl.analysis.evidence import Book
from agent2rl.analysis.failures.trends import Trend, constant, exploded, lost, numbers, passed, trend
from agent2rl.analysis.findings import Curve, Failure

LOSSES = ("loss", "eval_loss")
REWARDS = ("reward", "score", "success_rate")
"""As trainings call what they raise."""
RISE = 0.3
"""Of a loss that matters, whatever its noise; the loss of policy gradients is smaller than that."""


def diverged(curves: Sequence[Curve], book: Book) -> list[Failure]:
    """At most one for each training's series; what a later training did without counts less."""
    found = []
    for place, curve in enumerate(curves):
        told = _lost(curve) or _explosion(curve) or _rise(curve, curves) or _collapse(curve, curves)
        if told:
            message, confidence = told
            again = any(other.name == curve.name for other in curves[place + 1 :])
            cited = book.note("log", curve.where, message)
            confidence = 0.5 * confidence if again else confidence
            found.append(Failure(kind="diverged", message=message, confidence=confidence, evidence=(cited,)))
    return sorted(found, key=lambda each: -each.confidence)[:3]


def _lost(curve: Curve) -> tuple[str, float] | None:
    gap = lost(curve)
    if gap is None or curve.name not in (*LOSSES, *REWARDS, "grad_norm", "kl"):
        return None
    step, stayed = gap
    known = 0.95 if curve.name in LOSSES else 0.8
    if stayed:
        return f"The {curve.name} is no number any more from step {step:g} on.", known
    return f"The {curve.name} was no number at step {step:g}, and one again later.", 0.35


def _explosion(curve: Curve) -> tuple[str, float] | None:
    limits = {"loss": (10.0, 5.0), "grad_norm": (50.0, 100.0), "kl": (20.0, 10.0)}
    if curve.name not in limits:
        return None
    values = numbers(curve)
    times, least = limits[curve.name]
    if not exploded(values, times, least):
        return None
    at = passed(curve, max(times * abs(values[0]) / 3, least / 3))
    said = f"The {curve.name} grew from {values[0]:.4g} to {values[-1]:.4g}, from step {at:g} on."
    return said, 0.85 if curve.name == "loss" else 0.6


def _rise(curve: Curve, curves: Sequence[Curve]) -> tuple[str, float] | None:
    """A loss that went up and stayed; where a reward went up with it, that is how rewards are won."""
    if curve.name != "loss" or (course := trend(curve)) is None:
        return None
    limit = course.before + max(4 * course.noise, 0.5 * abs(course.before), RISE)
    if course.after <= limit or any(one.rises for one in _courses(REWARDS, curves)):
        return None
    at = passed(curve, (course.before + course.after) / 2)
    said = f"The loss rose from {course.before:.4g} to {course.after:.4g} and stayed, from step {at:g} on."
    return said, 0.8


def _collapse(curve: Curve, curves: Sequence[Curve]) -> tuple[str, float] | None:
    if (course := trend(curve)) is None:
        return None
    if curve.name in REWARDS:
        fall, scale = -course.change, max(abs(course.before), abs(course.after))
        if fall > max(6 * course.error, 3 * course.noise, 0.5 * scale, 0.02) and course.steady <= -0.4:
            return f"The {curve.name} fell from {course.before:.4g} to {course.after:.4g} and stayed.", 0.65
    if curve.name == "entropy" and course.before > 0 and abs(course.after) < min(0.05, 0.1 * course.before):
        rewards = _courses(REWARDS, curves)
        if rewards and not any(one.rises for one in rewards):
            return (
                f"The entropy fell from {course.before:.4g} to {course.after:.4g}, and no reward rose.",
                0.6,
            )
    return None


def _courses(names: Sequence[str], curves: Sequence[Curve]) -> list[Trend]:
    return [course for each in curves if each.name in names and (course := trend(each))]


def risen(curves: Sequence[Curve]) -> tuple[Curve, Trend] | None:
    """The reward of a training that clearly rose, the clearest of them."""
    found = [(each, one) for each in curves if each.name in REWARDS and (one := trend(each)) and one.rises]
    return max(found, key=lambda pair: pair[1].change / max(pair[1].error, 1e-9), default=None)


def unvaried(curves: Sequence[Curve]) -> Curve | None:
    """A reward that was the same all along, or whose spread or advantage was 0: nothing to learn from."""
    for each in curves:
        values = numbers(each)
        flat = each.name == "reward" and len(values) >= LEAST_FLAT and constant(values)
        spread = each.name in ("reward_std", "advantage") and len(values) >= LEAST_FLAT
        if flat or (spread and constant(values) and abs(values[0]) < 1e-9):
            return each
    return None


LEAST_FLAT = 6
"""Points from which on a constant is no chance."""
