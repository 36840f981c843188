"""Every two values of an axis held against each other, all else equal; what they claim together is corrected.

All else equal: only runs in surroundings (the other axes' values) that both have. Drivers are so compared
within the same agents, and modes with the same drivers.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

from agent2rl.analysis.campaigns.comparisons import GroupDifference, compare_groups, correct_holm
from agent2rl.analysis.campaigns.leaderboard import ENTRY_AXES
from agent2rl.analysis.campaigns.resampling import select_counted
from agent2rl.analysis.campaigns.run_digest import RunDigest, group_by
from agent2rl.core.record import Record

MOST_VALUES = 8
"""With more, each is held against the one with the best mean only: their pairs would be too many to read."""


class AxisComparison(Record):
    first: str
    second: str
    found: GroupDifference
    p_holm: float | None
    """As one of the family; None where there are not enough runs."""


class ComparisonFamily(Record):
    axis: str
    pairs: tuple[AxisComparison, ...]


def compare_axes(digests: Sequence[RunDigest]) -> tuple[ComparisonFamily, ...]:
    """One for each axis on which runs differ."""
    runs = select_counted(digests)
    return tuple(_compare_axis(runs, axis) for axis in ENTRY_AXES if len(group_by(runs, (axis,))) > 1)


def _compare_axis(runs: Sequence[RunDigest], axis: str) -> ComparisonFamily:
    groups = {value: members for (value,), members in group_by(runs, (axis,)).items()}
    others = tuple(each for each in ENTRY_AXES if each != axis)
    found = [
        (first, second, _compare_matched(groups[first], groups[second], others))
        for first, second in _choose_pairs(groups)
    ]
    tested = [each.p_value for _, _, each in found if each.p_value is not None]
    corrected = iter(correct_holm(tested))
    return ComparisonFamily(
        axis=axis,
        pairs=tuple(
            AxisComparison(
                first=first,
                second=second,
                found=each,
                p_holm=None if each.p_value is None else next(corrected),
            )
            for first, second, each in found
        ),
    )


def _compare_matched(
    first: Sequence[RunDigest], second: Sequence[RunDigest], others: Sequence[str]
) -> GroupDifference:
    mine, theirs = group_by(first, others), group_by(second, others)
    common = sorted(mine.keys() & theirs.keys())
    left, right = ([run for key in common for run in side[key]] for side in (mine, theirs))
    return compare_groups(left, right, match=("task", "seed", *others))


def _choose_pairs(groups: dict[str, list[RunDigest]]) -> Iterable[tuple[str, str]]:
    """The one with the higher mean gain first."""
    order = sorted(groups, key=lambda name: (-_mean_gain(groups[name]), name))
    if len(order) <= MOST_VALUES:
        return combinations(order, 2)
    return ((order[0], other) for other in order[1:])


def _mean_gain(runs: Sequence[RunDigest]) -> float:
    return sum(each.gain or 0.0 for each in runs) / len(runs)
