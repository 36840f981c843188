"""Every two values of an axis held against each other, all else equal; what they claim together is corrected.

All else equal: only runs in surroundings (the other axes' values) that both have. Drivers are so compared
within the same agents, and modes with the same drivers.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

from agent2rl.analysis.campaigns.comparisons import Difference, compare, holm
from agent2rl.analysis.campaigns.digest import Digest, group_by
from agent2rl.analysis.campaigns.leaderboard import ENTRY
from agent2rl.analysis.campaigns.resampling import counted
from agent2rl.core.record import Record

MOST_VALUES = 8
"""With more, each is held against the one with the best mean only: their pairs would be too many to read."""


class Pair(Record):
    first: str
    second: str
    found: Difference
    p_holm: float | None
    """As one of the family; None where there are not enough runs."""


class Family(Record):
    axis: str
    pairs: tuple[Pair, ...]


def families(digests: Sequence[Digest]) -> tuple[Family, ...]:
    """One for each axis on which runs differ."""
    runs = counted(digests)
    return tuple(_family(runs, axis) for axis in ENTRY if len(group_by(runs, (axis,))) > 1)


def _family(runs: Sequence[Digest], axis: str) -> Family:
    groups = {value: members for (value,), members in group_by(runs, (axis,)).items()}
    others = tuple(each for each in ENTRY if each != axis)
    found = [
        (first, second, _compared(groups[first], groups[second], others)) for first, second in _pairs(groups)
    ]
    tested = [each.p_value for _, _, each in found if each.p_value is not None]
    corrected = iter(holm(tested))
    return Family(
        axis=axis,
        pairs=tuple(
            Pair(
                first=first,
                second=second,
                found=each,
                p_holm=None if each.p_value is None else next(corrected),
            )
            for first, second, each in found
        ),
    )


def _compared(first: Sequence[Digest], second: Sequence[Digest], others: Sequence[str]) -> Difference:
    mine, theirs = group_by(first, others), group_by(second, others)
    common = sorted(mine.keys() & theirs.keys())
    left, right = ([run for key in common for run in side[key]] for side in (mine, theirs))
    return compare(left, right, match=("task", "seed", *others))


def _pairs(groups: dict[str, list[Digest]]) -> Iterable[tuple[str, str]]:
    """The one with the higher mean gain first."""
    order = sorted(groups, key=lambda name: (-_mean(groups[name]), name))
    if len(order) <= MOST_VALUES:
        return combinations(order, 2)
    return ((order[0], other) for other in order[1:])


def _mean(runs: Sequence[Digest]) -> float:
    return sum(each.gain or 0.0 for each in runs) / len(runs)
