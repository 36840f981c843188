"""Who gained how much: every combination of agent, driver, model and mode in a row, the best first.

Gains are of held-out data, or under the paper's protocol of the test set; never of both in one table.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from agent2rl.analysis.campaigns.cell_statistics import Cell, GainTally, compute_cell, tally_runs
from agent2rl.analysis.campaigns.ranking import RankedEntry, rank_entries
from agent2rl.analysis.campaigns.resampling import select_counted
from agent2rl.analysis.campaigns.run_digest import (
    RunDigest,
    count_contaminated,
    count_excluded,
    group_by,
    select_runs,
)
from agent2rl.core.record import Record
from agent2rl.core.records import ScoringProtocol
from agent2rl.core.units import strip_path

ENTRY_AXES = ("agent", "driver", "model", "mode")
"""What an entry is made of."""


class AverageRunCost(Record):
    """Of one run, on average over those that have a gain. None: nobody knows it of all of them."""

    seconds: float
    tokens: float
    usd: float | None
    gpu_seconds: float | None
    submissions: float


class LeaderboardRow(Record):
    name: str
    """Of those values that differ between rows."""
    agent: str
    driver: str
    """Empty where there is none."""
    model: str
    mode: str
    place: RankedEntry
    all: GainTally
    by_task: dict[str, Cell]
    cost: AverageRunCost | None
    """None where no run has a gain."""


class Leaderboard(Record):
    protocol: ScoringProtocol
    tasks: tuple[str, ...]
    runs: int
    excluded: dict[str, int]
    """Runs that say nothing of their agent, by why."""
    contaminated: int = 0
    """Contaminated runs that are counted, because they were asked for."""
    contaminated_left_out: int = 0
    """Contaminated runs that are not in it, nor in `runs`."""
    contamination_unknown: int = 0
    """Runs that are counted and whose workspace was not searched for evaluation data."""
    rows: tuple[LeaderboardRow, ...]


def build_leaderboard(
    digests: Sequence[RunDigest], protocol: ScoringProtocol = "heldout", include_contaminated: bool = False
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
        rows=tuple(_build_row(keys[place.name], groups[keys[place.name]], place) for place in ranking.places),
    )


def name_entries(digests: Sequence[RunDigest]) -> Mapping[tuple[str, ...], str]:
    """What tells the entries apart, of each: the agent, and whatever else varies."""
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
        by_task={task: compute_cell(runs) for (task,), runs in group_by(members, ("task",)).items()},
        cost=_average_cost(select_counted(members)),
    )


def _average_cost(runs: Sequence[RunDigest]) -> AverageRunCost | None:
    if not runs:
        return None
    usd = [each.total.usd for each in runs if each.total.usd is not None]
    gpu = [each.total.gpu_seconds for each in runs if each.total.gpu_seconds is not None]
    return AverageRunCost(
        seconds=fmean(each.total.seconds for each in runs),
        tokens=fmean(each.total.tokens for each in runs),
        usd=fmean(usd) if len(usd) == len(runs) else None,
        gpu_seconds=fmean(gpu) if len(gpu) == len(runs) else None,
        submissions=fmean(each.submissions for each in runs),
    )
