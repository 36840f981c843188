"""Build the leaderboard: a row for each combination of agent, driver, model and mode, the best first.

Ranks have intervals, from resampling runs and examples. Gains are on held-out data or, under the paper's
protocol, on the test set; a table never has both. A task with other expert help or
another network policy counts as another task, so no run is compared with one that had more.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agent2rl.analysis.campaigns.cell_statistics import Cell, GainTally, compute_cell, tally_runs
from agent2rl.analysis.campaigns.resampling import (
    LEAST_RUNS,
    LEVEL,
    NOT_ENOUGH,
    Floats,
    GainSample,
    IntervalEstimate,
    NotEnough,
    choose_draw_count,
    collect_gains,
    degrees_of_freedom,
    estimate_with_student,
    select_counted,
)
from agent2rl.analysis.campaigns.run_digest import (
    RunDigest,
    count_contaminated,
    count_excluded,
    group_by,
    select_runs,
)
from agent2rl.core.base_record import Record
from agent2rl.core.records import ScoringProtocol
from agent2rl.core.units import strip_path

# Ranks, by resampling runs and examples.


class RankedEntry(Record):
    """An entry of a ranking. It has no rank if it has too few runs."""

    name: str
    n: int
    excluded: dict[str, int]
    mean: IntervalEstimate | None
    """Gain in points, averaged over tasks; None if it lacks runs of a task."""
    rank: float | NotEnough
    """Expected rank; equal entries share theirs."""
    rank_interval: tuple[float, float] | NotEnough
    chances: tuple[float, ...] = ()
    """Probability of being first, second, … of the ranked entries."""


class Ranking(Record):
    """Entries by expected rank, the best first; those without a rank come last."""

    tasks: tuple[str, ...]
    places: tuple[RankedEntry, ...]


def rank_entries(entries: Mapping[str, Sequence[RunDigest]], tasks: Sequence[str] | None = None) -> Ranking:
    """Rank entries by the mean over `tasks` (None: all that any entry has) of the mean gain in each.

    An entry needs two runs of each task, and as many degrees of freedom as the interval of a cell.
    """
    runs = {name: select_counted(members) for name, members in sorted(entries.items())}
    if len({each.protocol for members in runs.values() for each in members}) > 1:
        raise ValueError("runs under different protocols cannot be ranked together")
    known = {each.task_setting for members in runs.values() for each in members}
    wanted = tuple(sorted(known if tasks is None else tasks))
    strata = {name: _group_by_task(members, wanted) for name, members in runs.items()}
    many = choose_draw_count(max((len(each) for samples in strata.values() for each in samples), default=1))
    draws = {
        name: _draw_means(samples, many) for name, samples in strata.items() if _has_enough_runs(samples)
    }
    standing = _estimate_ranks(draws)
    places = [
        RankedEntry(
            name=name,
            n=len(members),
            excluded=count_excluded(entries[name]),
            mean=_estimate_mean(strata[name], draws.get(name)),
            rank=standing[name][0] if name in standing else NOT_ENOUGH,
            rank_interval=standing[name][1] if name in standing else NOT_ENOUGH,
            chances=standing[name][2] if name in standing else (),
        )
        for name, members in runs.items()
    ]
    return Ranking(tasks=wanted, places=tuple(sorted(places, key=_ranking_sort_key)))


def _group_by_task(runs: Sequence[RunDigest], tasks: Sequence[str]) -> list[GainSample]:
    """Return a sample for each task; an empty list if a task has no run."""
    groups = group_by(runs, ("task_setting",))
    return (
        [collect_gains(groups[(task,)]) for task in tasks] if all((task,) in groups for task in tasks) else []
    )


def _has_enough_runs(samples: Sequence[GainSample]) -> bool:
    sizes = [len(each) for each in samples]
    return bool(sizes) and min(sizes) >= 2 and sum(size - 1 for size in sizes) >= LEAST_RUNS - 1


def _draw_means(samples: Sequence[GainSample], many: int) -> Floats:
    total: Floats = sum((each.draw_means(many) for each in samples), start=np.zeros(1)) / len(samples)
    return total


def _estimate_mean(samples: Sequence[GainSample], draws: Floats | None) -> IntervalEstimate | None:
    if not samples:
        return None
    value = float(np.mean([each.mean for each in samples]))
    if draws is None:
        return IntervalEstimate(value=value, interval=NOT_ENOUGH)
    return estimate_with_student(value, draws, degrees_of_freedom(samples))


def _estimate_ranks(
    draws: Mapping[str, Floats],
) -> dict[str, tuple[float, tuple[float, float], tuple[float, ...]]]:
    """Return for each entry the expected rank, its interval, and the probability of each rank."""
    if not draws:
        return {}
    above, equals = _count_above_and_equal(np.array(list(draws.values())).T)
    middle = above + (equals + 1) / 2
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    found = {}
    for place, name in enumerate(draws):
        low, high = (float(each) for each in np.quantile(middle[:, place], tails))
        chances = _rank_probabilities(above[:, place], equals[:, place], len(draws))
        found[name] = (float(middle[:, place].mean()), (low, high), chances)
    return found


def _count_above_and_equal(values: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For draws × entries, count how many are above each, and how many equal it, itself included."""
    order = np.argsort(-values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    n = values.shape[1]
    here = np.broadcast_to(np.arange(n), values.shape)
    changes = ordered[:, 1:] != ordered[:, :-1]
    starts, ends = np.zeros_like(order), np.full_like(order, n)
    starts[:, 1:] = np.maximum.accumulate(np.where(changes, here[:, 1:], 0), axis=1)
    ends[:, :-1] = np.minimum.accumulate(np.where(changes, here[:, 1:], n)[:, ::-1], axis=1)[:, ::-1]
    above, equals = np.empty_like(order), np.empty_like(order)
    np.put_along_axis(above, order, starts, axis=1)
    np.put_along_axis(equals, order, ends - starts, axis=1)
    return above, equals


def _rank_probabilities(above: NDArray[np.intp], equals: NDArray[np.intp], n: int) -> tuple[float, ...]:
    begins = np.bincount(above, weights=1 / equals, minlength=n + 1)
    ends = np.bincount(above + equals, weights=1 / equals, minlength=n + 1)
    shares = np.cumsum(begins - ends)[:n] / len(above)
    # Sums of shares may leave their range by rounding.
    return tuple(round(float(share), 12) for share in np.clip(shares, 0.0, 1.0))


def _ranking_sort_key(place: RankedEntry) -> tuple[float, float, str]:
    first = place.rank if isinstance(place.rank, float) else float("inf")
    return first, -place.mean.value if place.mean else float("inf"), place.name


NOT_FULL = ("partial", "none")
ENTRY_AXES = ("agent", "driver", "model", "mode")
"""The fields that identify an entry."""


class AverageRunCost(Record):
    """Average cost of a run, over runs that have a gain. None if the cost of some run is unknown."""

    seconds: float
    tokens: float
    usd: float | None
    gpu_seconds: float | None
    submissions: float
    seconds_to_best: float | None = None
    """Over the runs that had a score above the untouched model; None if there are none."""
    points_per_usd: float | None = None
    """Mean gain by mean cost of the driver LLM; None if that is unknown or nothing."""


class LeaderboardRow(Record):
    name: str
    """Made of the values that differ between rows."""
    agent: str
    driver: str
    """Empty if there is none."""
    model: str
    mode: str
    place: RankedEntry
    all: GainTally
    by_task: dict[str, Cell]
    cost: AverageRunCost | None
    """None if no run has a gain."""


class Leaderboard(Record):
    protocol: ScoringProtocol
    tasks: tuple[str, ...]
    runs: int
    excluded: dict[str, int]
    """Number of runs that say nothing about their agent, by reason."""
    contaminated: int = 0
    """Number of contaminated runs that are included on request."""
    contaminated_left_out: int = 0
    """Number of contaminated runs that are left out, also of `runs`."""
    warnings: dict[str, int] = Field(default_factory=dict)
    """What evaluators say against the scores of runs: text → number of runs."""
    contamination_unknown: int = 0
    """Number of included runs with a workspace that was not searched for evaluation data."""
    isolation: dict[str, int] = Field(default_factory=dict)
    """Number of included runs that were not fully isolated, by level: `partial` or `none`."""
    rows: tuple[LeaderboardRow, ...]


def build_leaderboard(
    digests: Sequence[RunDigest], protocol: ScoringProtocol = "default", include_contaminated: bool = False
) -> Leaderboard:
    selection = select_runs(digests, protocol, include_contaminated)
    mine = selection.runs
    groups, names = group_by(mine, ENTRY_AXES), name_entries(mine)
    ranking = rank_entries({names[key]: members for key, members in groups.items()})
    keys = {name: key for key, name in names.items()}
    return Leaderboard(
        protocol=protocol,
        tasks=ranking.tasks,
        runs=len(mine),
        excluded=count_excluded(mine),
        contaminated=count_contaminated(select_counted(mine)),
        contaminated_left_out=selection.contaminated_left_out,
        contamination_unknown=sum(each.contaminated is None for each in select_counted(mine)),
        isolation=_count_not_isolated(select_counted(mine)),
        warnings=dict(Counter(each.warning for each in select_counted(mine) if each.warning)),
        rows=tuple(_build_row(keys[place.name], groups[keys[place.name]], place) for place in ranking.places),
    )


def _count_not_isolated(digests: Sequence[RunDigest]) -> dict[str, int]:
    counts = {level: sum(each.isolation == level for each in digests) for level in NOT_FULL}
    return {level: count for level, count in counts.items() if count}


def name_entries(digests: Sequence[RunDigest]) -> Mapping[tuple[str, ...], str]:
    """Name each entry by its agent and all other fields that vary."""
    keys = list(group_by(digests, ENTRY_AXES))
    varies = [axis == "agent" or len({key[at] for key in keys}) > 1 for at, axis in enumerate(ENTRY_AXES)]
    parts = {key: [value for value, differs in zip(key, varies, strict=True) if differs] for key in keys}
    short = {key: _join_name([strip_path(value) for value in values]) for key, values in parts.items()}
    same = len(set(short.values())) < len(keys)
    return {key: _join_name(values) for key, values in parts.items()} if same else short


def _join_name(values: Sequence[str]) -> str:
    return " · ".join(value or "no driver" for value in values)


def _build_row(key: tuple[str, ...], members: Sequence[RunDigest], place: RankedEntry) -> LeaderboardRow:
    return LeaderboardRow(
        name=place.name,
        **dict(zip(ENTRY_AXES, key, strict=True)),
        place=place,
        all=tally_runs(members),
        by_task={task: compute_cell(runs) for (task,), runs in group_by(members, ("task_setting",)).items()},
        cost=_average_cost(select_counted(members)),
    )


def _average_cost(runs: Sequence[RunDigest]) -> AverageRunCost | None:
    if not runs:
        return None
    usd = [each.total.usd for each in runs if each.total.usd is not None]
    gpu = [each.total.gpu_seconds for each in runs if each.total.gpu_seconds is not None]
    times = [each.seconds_to_best for each in runs if each.seconds_to_best is not None]
    cost = fmean(usd) if len(usd) == len(runs) else None
    return AverageRunCost(
        seconds=fmean(each.total.seconds for each in runs),
        tokens=fmean(each.total.tokens for each in runs),
        usd=cost,
        gpu_seconds=fmean(gpu) if len(gpu) == len(runs) else None,
        submissions=fmean(each.submissions for each in runs),
        seconds_to_best=fmean(times) if times else None,
        points_per_usd=fmean(each.gain or 0.0 for each in runs) / cost if cost else None,
    )
