"""Measures a judge by preferences that are known: does it agree, does it favour a place or length?

Every comparison is put to it twice, once in each order; its preference is the mean of both. What it answers
to neither, or to one order alone, is missing and counted.
"""

import hashlib
import math
from collections.abc import Sequence

from agent2rl.core.errors import GradingError
from agent2rl.core.records import Calibration, Estimate
from agent2rl.core.task import JudgePreference
from agent2rl.evaluators.referees import AnswerComparison, JudgeReferee, RefereePreference


def select_preferences(known: Sequence[JudgePreference], most: int) -> list[JudgePreference]:
    """So many of them, the same each time; ties of the known judge say nothing and are left out."""
    decided = [one for one in known if one.share != 0.5]

    def rank(one: JudgePreference) -> bytes:
        return hashlib.sha256(f"{one.example.id}\n{one.output}".encode("utf-8", "surrogatepass")).digest()

    return sorted(decided, key=rank)[:most]


def calibrate(judge: JudgeReferee, known: Sequence[JudgePreference]) -> Calibration:
    asked = [AnswerComparison(one.example, one.output, one.example.target) for one in known]
    orders = [judge.prefer_in_order(asked, [first] * len(asked), most=1.0) for first in (True, False)]
    both = [
        (one, before, after)
        for one, before, after in zip(known, *orders, strict=True)
        if isinstance(before, RefereePreference) and isinstance(after, RefereePreference)
    ]
    if not both:
        raise GradingError("The judge gave no preference at all.", "Does it say A or B when it is asked to?")
    means = [(one, (before.share + after.share) / 2) for one, before, after in both]
    longer = [
        (mine if len(one.output) > len(one.example.target) else 1 - mine, one)
        for one, mine in means
        if len(one.output) != len(one.example.target)
    ]
    return Calibration(
        judge=judge.name,
        n=len(both),
        missing=len(known) - len(both),
        agreement=estimate_percent([_score_agreement(mine, one.share) for one, mine in means]),
        consistency=estimate_percent([float(_find_side(a.share) == _find_side(b.share)) for _, a, b in both]),
        # The first answer's share: the output's in one order, the reference's in the other.
        first=estimate_percent([(a.share + 1 - b.share) / 2 for _, a, b in both]),
        longer=estimate_percent([share for share, _ in longer]),
        longer_known=estimate_percent([_read_longer_share(one) for _, one in longer]),
        by_probability=sum(a.by == b.by == "probability" for _, a, b in both),
    )


def estimate_percent(values: Sequence[float]) -> Estimate | None:
    """A mean in percent with its standard error; None of nothing."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return Estimate(value=100 * mean, error=100 * math.sqrt(spread / len(values)))


def _score_agreement(mine: float, share: float) -> float:
    """Half where the judge leans to neither side."""
    return 0.5 if _find_side(mine) == 0 else float(_find_side(mine) == _find_side(share))


def _find_side(share: float) -> int:
    return int(share > 0.5) - int(share < 0.5)


def _read_longer_share(one: JudgePreference) -> float:
    return one.share if len(one.output) > len(one.example.target) else 1 - one.share
