"""Compare groups of runs: two groups, all values of an axis, and tables with a star where a gain is not 0.

Runs with matching seeds are compared as pairs. Comparisons are made task by task and averaged over the tasks
that both groups have, so that more runs of an easy task are no advantage.

Values of an axis are compared with all else equal: only runs with values of the other axes that both sides
have. So drivers are compared within the same agents, and modes with the same drivers.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal

import numpy as np

from agent2rl.analysis.campaigns import resampling
from agent2rl.analysis.campaigns.cell_statistics import Cell, compute_cells
from agent2rl.analysis.campaigns.leaderboard import ENTRY_AXES
from agent2rl.analysis.campaigns.resampling import (
    LEAST_RUNS,
    NOT_ENOUGH,
    ExampleSet,
    Floats,
    GainSample,
    IntervalEstimate,
    choose_draw_count,
    collect_gains,
    degrees_of_freedom,
    estimate_shared_effects,
    estimate_with_student,
    hash_seed,
    select_counted,
)
from agent2rl.analysis.campaigns.run_digest import RunDigest, count_excluded, group_by
from agent2rl.core.base_record import Record

RunPair = tuple[RunDigest, RunDigest]


class GroupDifference(Record):
    """Mean gain of the first group minus that of the second, in points."""

    paired: bool
    tasks: tuple[str, ...]
    """Tasks that both groups have. Only these are compared."""
    n: tuple[int, int]
    """Number of runs of each group that are compared; if paired, the number of pairs, twice."""
    unmatched: tuple[int, int]
    """Number of runs of each group without a partner or without the task in the other group."""
    excluded: tuple[dict[str, int], dict[str, int]]
    difference: IntervalEstimate | None
    """None if there is nothing to compare."""
    effect: float | None
    """Cliff's delta, from -1 to 1: the probability that a run of the first group beats one of the second,
    minus the reverse. If paired, over pairs."""
    p_value: float | None
    """From a permutation test over runs; None if there are not enough."""
    test: Literal["signs", "labels"] | None


def compare_groups(
    first: Sequence[RunDigest], second: Sequence[RunDigest], match: Sequence[str] = ("task_setting", "seed")
) -> GroupDifference:
    """Compare two groups of runs.

    Two runs are partners if they are the only ones in their groups with the same values of the fields in
    `match`. If there are enough partners they are compared as pairs, otherwise all runs of a task are.
    """
    sides = (select_counted(first), select_counted(second))
    if len({each.protocol for side in sides for each in side}) > 1:
        raise ValueError("runs under different protocols cannot be compared")
    pairs = _match_pairs(*sides, match)
    by_task = [group_by(side, ("task_setting",)) for side in sides]
    tasks = sorted(by_task[0].keys() & by_task[1].keys())
    paired = len(pairs) >= LEAST_RUNS
    if paired:
        used = (len(pairs), len(pairs))
        tasks = sorted({(one.task_setting,) for one, _ in pairs})
        found = _compare_pairs(pairs)
    else:
        used = (_count_runs(by_task[0], tasks), _count_runs(by_task[1], tasks))
        found = _compare_unpaired([(by_task[0][task], by_task[1][task]) for task in tasks])
    return GroupDifference(
        paired=paired,
        tasks=tuple(task for (task,) in tasks),
        n=used,
        unmatched=(len(sides[0]) - used[0], len(sides[1]) - used[1]),
        excluded=(count_excluded(first), count_excluded(second)),
        **found,
    )


def correct_holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values with Holm's correction, which bounds the chance of any false claim in the family."""
    order = np.argsort(p_values, kind="stable")
    found = np.empty(len(p_values))
    worst = 0.0
    for rank, place in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p_values[place]))
        found[place] = worst
    return tuple(float(each) for each in found)


def cliffs_delta(first: Floats, second: Floats) -> float:
    """Return Cliff's delta. Ties count for neither side."""
    ordered = np.sort(second)
    below = np.searchsorted(ordered, first, side="left")
    above = len(second) - np.searchsorted(ordered, first, side="right")
    return float((below - above).sum() / (len(first) * len(second)))


def _count_runs(
    by_task: Mapping[tuple[str, ...], Sequence[RunDigest]], tasks: Sequence[tuple[str, ...]]
) -> int:
    return sum(len(by_task[task]) for task in tasks)


def _match_pairs(
    first: Sequence[RunDigest], second: Sequence[RunDigest], match: Sequence[str]
) -> list[RunPair]:
    mine, theirs = _index_unique_runs(first, match), _index_unique_runs(second, match)
    return [(mine[key], theirs[key]) for key in sorted(mine.keys() & theirs.keys())]


def _index_unique_runs(runs: Sequence[RunDigest], match: Sequence[str]) -> dict[tuple[str, ...], RunDigest]:
    return {key: members[0] for key, members in group_by(runs, match).items() if len(members) == 1}


def _compare_pairs(pairs: Sequence[RunPair]) -> Mapping[str, object]:
    strata: dict[str, list[RunPair]] = {}
    for pair in pairs:
        strata.setdefault(pair[0].task_setting, []).append(pair)
    samples = [_collect_pair_gains(members) for members in strata.values()]
    values = np.concatenate([each.values for each in samples])
    weights = np.concatenate([np.full(len(each), 1 / (len(each) * len(samples))) for each in samples])
    effect = float(np.mean([np.sign(each.values).mean() for each in samples]))
    return {
        "difference": _average_strata(samples, [1] * len(samples)),
        "effect": effect,
        "p_value": resampling.permute_signs(values, weights),
        "test": "signs",
    }


def _collect_pair_gains(pairs: Sequence[RunPair]) -> GainSample:
    """Treat the difference of each pair like the gain of a run."""
    values = np.array([(one.gain or 0.0) - (other.gain or 0.0) for one, other in pairs])
    names: dict[str, list[int]] = {}
    for place, (one, other) in enumerate(pairs):
        if one.examples_sha256 and one.examples_sha256 == other.examples_sha256:
            names.setdefault(one.examples_sha256, []).append(place)
    sets = [
        ExampleSet(
            name,
            np.array(places),
            estimate_shared_effects(np.array([_subtract_partner(pairs[place]) for place in places])),
        )
        for name, places in sorted(names.items())
        if len(places) > 1
    ]
    return GainSample(values, tuple(sets), hash_seed(*(each.run_id for pair in pairs for each in pair)))


def _subtract_partner(pair: RunPair) -> Floats:
    one, other = (each.points * (not each.left_base) for each in pair)
    gap: Floats = one - other
    return gap


def _compare_unpaired(
    strata: Sequence[tuple[Sequence[RunDigest], Sequence[RunDigest]]],
) -> Mapping[str, object]:
    if not strata:
        return {"difference": None, "effect": None, "p_value": None, "test": None}
    samples = [tuple(collect_gains(side) for side in sides) for sides in strata]
    values = [(first.values, second.values) for first, second in samples]
    enough = all(sum(len(pair[side]) for pair in samples) >= LEAST_RUNS for side in (0, 1))
    flat = [each for pair in samples for each in pair]
    return {
        "difference": _average_strata(flat, [1, -1] * len(samples), enough),
        "effect": float(np.mean([cliffs_delta(*pair) for pair in values])),
        "p_value": resampling.permute_labels(values) if enough else None,
        "test": "labels" if enough else None,
    }


def _average_strata(
    samples: Sequence[GainSample], signs: Sequence[int], enough: bool = True
) -> IntervalEstimate:
    """Return the mean over strata, each of one sample or of two with opposite signs.

    The spread of a sample of one run is unknown; then there is no interval.
    """
    scale = sum(sign > 0 for sign in signs)
    value = sum(sign * each.mean for each, sign in zip(samples, signs, strict=True)) / scale
    if not enough or min(map(len, samples)) < 2:
        return IntervalEstimate(value=value, interval=NOT_ENOUGH)
    many = choose_draw_count(max(map(len, samples)))
    draws = sum(
        (sign * each.draw_means(many) for each, sign in zip(samples, signs, strict=True)),
        start=np.zeros(1),
    )
    return estimate_with_student(value, draws / scale, degrees_of_freedom(samples))


# Comparison of all pairs of values of an axis, all else equal, corrected for multiple tests.

MOST_VALUES = 8
"""With more values, each is only compared with the best one: all pairs would be too many to read."""


class AxisComparison(Record):
    first: str
    second: str
    found: GroupDifference
    p_holm: float | None
    """Corrected within the family; None if there are not enough runs."""


class ComparisonFamily(Record):
    axis: str
    pairs: tuple[AxisComparison, ...]


def compare_axes(digests: Sequence[RunDigest]) -> tuple[ComparisonFamily, ...]:
    """Return a family of comparisons for each axis on which runs differ."""
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
    return compare_groups(left, right, match=("task_setting", "seed", *others))


def _choose_pairs(groups: dict[str, list[RunDigest]]) -> Iterable[tuple[str, str]]:
    """Return pairs of values, the one with the higher mean gain first."""
    order = sorted(groups, key=lambda name: (-_mean_gain(groups[name]), name))
    if len(order) <= MOST_VALUES:
        return combinations(order, 2)
    return ((order[0], other) for other in order[1:])


def _mean_gain(runs: Sequence[RunDigest]) -> float:
    return sum(each.gain or 0.0 for each in runs) / len(runs)


# Tables of cells, such as mode × task or driver × task. A star means that the gain is not 0.

ALPHA = 0.05


class HeatmapCell(Record):
    row: str
    column: str
    cell: Cell
    p_holm: float | None
    """Corrected for the table; None for cells with too few runs, which are not part of the family."""
    star: bool
    """The interval excludes 0, also after Holm's correction for the whole table."""


class Heatmap(Record):
    row_axis: str
    column_axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[HeatmapCell, ...]
    """Cells that have runs, counted or not."""
    tested: int
    """Number of cells with enough runs, which is what the correction uses."""


def build_heatmap(digests: Sequence[RunDigest], row: str) -> Heatmap:
    """Build the table of an axis and the tasks, each with its expert help."""
    return assemble_heatmap(compute_cells(digests, (row, "task_setting")), row)


def assemble_heatmap(found: Mapping[tuple[str, ...], Cell], row: str) -> Heatmap:
    """Build the table of these cells, which are keyed by row and task."""
    tested = [key for key, each in found.items() if each.p_value is not None]
    corrected = dict(zip(tested, correct_holm([found[key].p_value or 0.0 for key in tested]), strict=True))
    return Heatmap(
        row_axis=row,
        column_axis="task",
        rows=_collect_axis_values(found, 0),
        columns=_collect_axis_values(found, 1),
        cells=tuple(_star_cell(key, each, corrected.get(key)) for key, each in found.items()),
        tested=len(tested),
    )


def _star_cell(key: tuple[str, ...], each: Cell, p_holm: float | None) -> HeatmapCell:
    clear = each.mean is not None and each.mean.excludes_zero and p_holm is not None and p_holm <= ALPHA
    return HeatmapCell(row=key[0], column=key[1], cell=each, p_holm=p_holm, star=clear)


def _collect_axis_values(found: Mapping[tuple[str, ...], Cell], place: int) -> tuple[str, ...]:
    return tuple(sorted({key[place] for key in found}))
