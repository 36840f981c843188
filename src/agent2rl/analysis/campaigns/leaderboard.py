"""Who gained how much: every combination of agent, driver, model and mode in a row, the best first.

Gains are of held-out data, or under the paper's protocol of the test set; never of both in one table.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from agent2rl.analysis.campaigns.cells import Cell, Tally, cell, tally
from agent2rl.analysis.campaigns.digest import (
    Digest,
    count_contaminated,
    count_excluded,
    group_by,
    select_runs,
)
from agent2rl.analysis.campaigns.ranking import Place, rank
from agent2rl.analysis.campaigns.resampling import counted
from agent2rl.core.record import Record
from agent2rl.core.records import Protocol
from agent2rl.core.units import without_path

ENTRY = ("agent", "driver", "model", "mode")
"""What an entry is made of."""


class Cost(Record):
    """Of one run, on average over those that have a gain. None: nobody knows it of all of them."""

    seconds: float
    tokens: float
    usd: float | None
    gpu_seconds: float | None
    submissions: float


class Row(Record):
    name: str
    """Of those values that differ between rows."""
    agent: str
    driver: str
    """Empty where there is none."""
    model: str
    mode: str
    place: Place
    all: Tally
    by_task: dict[str, Cell]
    cost: Cost | None
    """None where no run has a gain."""


class Leaderboard(Record):
    protocol: Protocol
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
    rows: tuple[Row, ...]


def leaderboard(
    digests: Sequence[Digest], protocol: Protocol = "heldout", include_contaminated: bool = False
) -> Leaderboard:
    selection = select_runs(digests, protocol, include_contaminated)
    mine = selection.runs
    groups, names = group_by(mine, ENTRY), entry_names(mine)
    ranking = rank({names[key]: members for key, members in groups.items()})
    keys = {name: key for key, name in names.items()}
    return Leaderboard(
        protocol=protocol,
        tasks=ranking.tasks,
        runs=len(mine),
        excluded=count_excluded(mine),
        contaminated=count_contaminated(counted(mine)),
        contaminated_left_out=selection.contaminated_left_out,
        contamination_unknown=sum(each.contaminated is None for each in counted(mine)),
        rows=tuple(_row(keys[place.name], groups[keys[place.name]], place) for place in ranking.places),
    )


def entry_names(digests: Sequence[Digest]) -> Mapping[tuple[str, ...], str]:
    """What tells the entries apart, of each: the agent, and whatever else varies."""
    keys = list(group_by(digests, ENTRY))
    varies = [axis == "agent" or len({key[at] for key in keys}) > 1 for at, axis in enumerate(ENTRY)]
    parts = {key: [value for value, differs in zip(key, varies, strict=True) if differs] for key in keys}
    short = {key: _name([without_path(value) for value in values]) for key, values in parts.items()}
    same = len(set(short.values())) < len(keys)
    return {key: _name(values) for key, values in parts.items()} if same else short


def _name(values: Sequence[str]) -> str:
    return " · ".join(value or "no driver" for value in values)


def _row(key: tuple[str, ...], members: Sequence[Digest], place: Place) -> Row:
    return Row(
        name=place.name,
        **dict(zip(ENTRY, key, strict=True)),
        place=place,
        all=tally(members),
        by_task={task: cell(runs) for (task,), runs in group_by(members, ("task",)).items()},
        cost=_cost(counted(members)),
    )


def _cost(runs: Sequence[Digest]) -> Cost | None:
    if not runs:
        return None
    usd = [each.total.usd for each in runs if each.total.usd is not None]
    gpu = [each.total.gpu_seconds for each in runs if each.total.gpu_seconds is not None]
    return Cost(
        seconds=fmean(each.total.seconds for each in runs),
        tokens=fmean(each.total.tokens for each in runs),
        usd=fmean(usd) if len(usd) == len(runs) else None,
        gpu_seconds=fmean(gpu) if len(gpu) == len(runs) else None,
        submissions=fmean(each.submissions for each in runs),
    )
