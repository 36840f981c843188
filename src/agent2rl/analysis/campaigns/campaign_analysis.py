"""Analyse many runs together. Pure: the same digests, in any order, give the same record."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from pydantic import AliasChoices, Field

from agent2rl.analysis.campaigns.comparisons import ComparisonFamily, Heatmap, build_heatmap, compare_axes
from agent2rl.analysis.campaigns.leaderboard import ENTRY_AXES, Leaderboard, build_leaderboard, name_entries
from agent2rl.analysis.campaigns.resampling import select_counted
from agent2rl.analysis.campaigns.route_shares import (
    DimensionCoverage,
    RouteShares,
    TaskTraits,
    count_routes_by,
    list_unknown_tasks,
    measure_coverage,
)
from agent2rl.analysis.campaigns.run_digest import RunDigest, count_contaminated, group_by, select_runs
from agent2rl.analysis.campaigns.scaling import (
    BestOfK,
    ScalingCurve,
    compute_all_scalings,
    compute_scaling,
    estimate_best_of_k,
)
from agent2rl.analysis.campaigns.training_sample import TaskTrainings, gather_task_trainings
from agent2rl.analysis.findings import TrainingCurves
from agent2rl.core.base_record import Record
from agent2rl.core.records import ScoringProtocol
from agent2rl.core.units import strip_path

MOST_LINES = 6
"""Limit on lines in one panel of a figure."""
MOST_TRAJECTORIES = 60
"""Limit on single runs in one panel."""
TOGETHER = "all runs"


class CampaignLine(Record):
    """One line of a figure: an entry, an agent, or all runs."""

    name: str
    best_of: dict[str, BestOfK]
    """By task."""
    scaling: dict[str, ScalingCurve]
    """By the kind of resource."""
    contaminated: int = 0
    """Number of contaminated runs."""


class GainTrajectory(Record):
    """One run: the best feedback gain so far, and the final gain."""

    run_id: str
    line: str
    points: tuple[tuple[float, float], ...]
    """Agent time in seconds, and points above the untouched model."""
    seconds: float
    gain: float
    contaminated: bool | None = None


class TaskTrajectories(Record):
    task: str
    trajectories: Annotated[
        tuple[GainTrajectory, ...], Field(validation_alias=AliasChoices("trajectories", "courses"))
    ]
    """An even selection if there are many."""
    runs: int
    all: ScalingCurve


class CampaignAnalysis(Record):
    name: str
    about: str
    protocol: ScoringProtocol
    other_protocol: int
    """Number of runs under the other protocol, which are not in any figure."""
    unreadable: tuple[str, ...]
    """Runs that could not be read, and why."""
    seeds: int
    leaderboard: Leaderboard
    heatmaps: tuple[Heatmap, ...]
    families: tuple[ComparisonFamily, ...]
    lines: tuple[CampaignLine, ...]
    trajectories: tuple[TaskTrajectories, ...]
    trainings: tuple[TaskTrainings, ...] = ()
    """Of tasks with training logs; empty if they were not read."""
    routes_by_task: dict[str, RouteShares]
    routes_by_agent: dict[str, RouteShares]
    coverage: tuple[DimensionCoverage, ...]
    untold: tuple[str, ...]
    """Tasks with unknown traits."""


def analyse_campaign(
    digests: Sequence[RunDigest],
    tasks: Sequence[TaskTraits],
    name: str = "",
    about: str = "",
    protocol: ScoringProtocol = "default",
    unreadable: Sequence[str] = (),
    include_contaminated: bool = False,
    read_trainings: Callable[[str], Sequence[TrainingCurves]] | None = None,
) -> CampaignAnalysis:
    """Analyse runs. `tasks` are all tasks that could have been run.

    `read_trainings` returns the training curves of a run by its id; without it there are none.
    """
    selection = select_runs(digests, protocol, include_contaminated)
    mine = selection.runs
    by_line = group_lines(mine)
    return CampaignAnalysis(
        name=name,
        about=about,
        protocol=protocol,
        other_protocol=selection.other_protocol,
        unreadable=tuple(unreadable),
        seeds=len({each.seed for each in mine}),
        leaderboard=build_leaderboard(digests, protocol, include_contaminated),
        heatmaps=tuple(build_heatmap(mine, axis) for axis in _list_varying_axes(mine)),
        families=compare_axes(mine),
        lines=tuple(_build_line(label, members) for label, members in by_line.items()),
        trajectories=_build_trajectories(mine, by_line),
        trainings=gather_task_trainings(mine, by_line, read_trainings) if read_trainings else (),
        routes_by_task=_count_routes_on_axis(mine, "task_setting"),
        routes_by_agent=_count_routes_on_axis(mine, "agent"),
        coverage=measure_coverage(tasks, mine),
        untold=list_unknown_tasks(tasks, mine),
    )


def group_lines(digests: Sequence[RunDigest]) -> Mapping[str, Sequence[RunDigest]]:
    """Group runs by entry if these are few enough for a figure, else by agent, else all together."""
    names = name_entries(digests)
    entries = {names[key]: members for key, members in group_by(digests, ENTRY_AXES).items()}
    agents = {strip_path(key[0]): members for key, members in group_by(digests, ("agent",)).items()}
    fitting = [found for found in (entries, agents) if len(found) <= MOST_LINES]
    return fitting[0] if fitting else {TOGETHER: digests}


def _list_varying_axes(digests: Sequence[RunDigest]) -> list[str]:
    """Return the axes for heatmaps: always the agent, and others with more than one value."""
    return [axis for axis in ENTRY_AXES if axis == "agent" or len(group_by(digests, (axis,))) > 1]


def _build_line(name: str, digests: Sequence[RunDigest]) -> CampaignLine:
    return CampaignLine(
        name=name,
        best_of={
            task: estimate_best_of_k(members)
            for (task,), members in group_by(digests, ("task_setting",)).items()
        },
        scaling={axis: found for axis, found in compute_all_scalings(digests).items() if found.grid},
        contaminated=count_contaminated(select_counted(digests)),
    )


def _build_trajectories(
    digests: Sequence[RunDigest], by_line: Mapping[str, Sequence[RunDigest]]
) -> tuple[TaskTrajectories, ...]:
    line = {each.run_id: name for name, members in by_line.items() for each in members}
    return tuple(
        TaskTrajectories(
            task=task,
            trajectories=tuple(
                _build_gain_trajectory(each, line[each.run_id])
                for each in _thin_runs(select_counted(members))
            ),
            runs=len(select_counted(members)),
            all=compute_scaling(members, "seconds"),
        )
        for (task,), members in group_by(digests, ("task_setting",)).items()
    )


def _thin_runs(runs: Sequence[RunDigest]) -> Sequence[RunDigest]:
    step = max(1, -(-len(runs) // MOST_TRAJECTORIES))
    return runs[::step]


def _build_gain_trajectory(run: RunDigest, line: str) -> GainTrajectory:
    return GainTrajectory(
        run_id=run.run_id,
        line=line,
        points=tuple((point.spent.seconds, point.best) for point in run.curve),
        seconds=max(run.total.seconds, *(point.spent.seconds for point in run.curve), 0.0),
        gain=run.gain or 0.0,
        contaminated=run.contaminated,
    )


def _count_routes_on_axis(digests: Sequence[RunDigest], axis: str) -> dict[str, RouteShares]:
    return {key[0]: found for key, found in count_routes_by(digests, (axis,)).items()}
