"""Count which routes were taken and which kinds of task were run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent2rl.analysis.campaigns.cell_statistics import estimate_rate
from agent2rl.analysis.campaigns.resampling import IntervalEstimate, select_counted
from agent2rl.analysis.campaigns.run_digest import RunDigest, count_excluded, group_by
from agent2rl.core.base_record import Record

LEFT_BASE = "untouched model"
UNKNOWN = "unknown"


class RouteShares(Record):
    """Routes of the final models of a group of runs."""

    n: int
    excluded: dict[str, int]
    counts: dict[str, int]
    """By route; `untouched model` if nothing better was found."""
    shares: dict[str, IntervalEstimate]
    """In percent."""


def count_routes(digests: Sequence[RunDigest]) -> RouteShares:
    runs = select_counted(digests)
    names = [LEFT_BASE if each.left_base else each.route or UNKNOWN for each in runs]
    counts = {name: names.count(name) for name in sorted(set(names))}
    return RouteShares(
        n=len(runs),
        excluded=count_excluded(digests),
        counts=counts,
        shares={name: estimate_rate(count, len(runs)) for name, count in counts.items()},
    )


def count_routes_by(
    digests: Sequence[RunDigest], axes: Sequence[str] = ("task", "agent")
) -> Mapping[tuple[str, ...], RouteShares]:
    return {key: count_routes(members) for key, members in group_by(digests, axes).items()}


@dataclass(frozen=True)
class TaskTraits:
    """The structure of a task."""

    task: str
    level: int
    world: bool
    """Whether the model acts in an environment, turn by turn."""
    judged: bool = False
    """Whether it can only be graded by a judge."""
    judge_offered: bool = False
    """Whether a judge can grade it if the user names one."""


def classify_task(traits: TaskTraits) -> dict[str, str]:
    """Return the value of a task in each of the paper's structural dimensions."""
    return {
        "level": str(traits.level),
        "data": "interactive" if traits.world else "static",
        "grading": "judge" if traits.judged else "rule or judge" if traits.judge_offered else "rule",
        "turns": "multi" if traits.world else "single",
        "online rollouts": "needed" if traits.world else "not needed",
    }


class DimensionCoverage(Record):
    dimension: str
    value: str
    tasks: tuple[str, ...]
    """All tasks of this kind."""
    run: tuple[str, ...]
    """Tasks with at least one run that has a gain."""
    runs: int
    """Number of runs that have a gain."""
    excluded: int


def measure_coverage(
    tasks: Sequence[TaskTraits], digests: Sequence[RunDigest]
) -> tuple[DimensionCoverage, ...]:
    """Return for each value of each dimension which tasks there are and which were run.

    Runs of tasks without traits are in no dimension: `list_unknown_tasks` names them.
    """
    by_task = {key[0]: members for key, members in group_by(digests, ("task",)).items()}
    found: dict[tuple[str, str], list[str]] = {}
    for traits in tasks:
        for place in classify_task(traits).items():
            found.setdefault(place, []).append(traits.task)
    return tuple(
        _measure_dimension(dimension, value, sorted(names), by_task)
        for (dimension, value), names in sorted(found.items())
    )


def list_unknown_tasks(tasks: Sequence[TaskTraits], digests: Sequence[RunDigest]) -> tuple[str, ...]:
    return tuple(sorted({each.task for each in digests} - {each.task for each in tasks}))


def _measure_dimension(
    dimension: str, value: str, tasks: Sequence[str], by_task: Mapping[str, Sequence[RunDigest]]
) -> DimensionCoverage:
    counts = {task: sum(not each.excluded for each in by_task.get(task, ())) for task in tasks}
    return DimensionCoverage(
        dimension=dimension,
        value=value,
        tasks=tuple(tasks),
        run=tuple(task for task in tasks if counts[task]),
        runs=sum(counts.values()),
        excluded=sum(len(by_task.get(task, ())) for task in tasks) - sum(counts.values()),
    )
