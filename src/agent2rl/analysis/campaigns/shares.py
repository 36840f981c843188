"""Which routes were taken, and which kinds of task were run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent2rl.analysis.campaigns.cells import rate
from agent2rl.analysis.campaigns.digest import Digest, count_excluded, group_by
from agent2rl.analysis.campaigns.resampling import Figure, counted
from agent2rl.core.record import Record

LEFT_BASE = "untouched model"
UNKNOWN = "unknown"


class Routes(Record):
    """How the models came about that a group of runs left."""

    n: int
    excluded: dict[str, int]
    counts: dict[str, int]
    """By route; `untouched model` where nothing better came about."""
    shares: dict[str, Figure]
    """In percent."""


def routes(digests: Sequence[Digest]) -> Routes:
    runs = counted(digests)
    names = [LEFT_BASE if each.left_base else each.route or UNKNOWN for each in runs]
    counts = {name: names.count(name) for name in sorted(set(names))}
    return Routes(
        n=len(runs),
        excluded=count_excluded(digests),
        counts=counts,
        shares={name: rate(count, len(runs)) for name, count in counts.items()},
    )


def route_shares(
    digests: Sequence[Digest], axes: Sequence[str] = ("task", "agent")
) -> Mapping[tuple[str, ...], Routes]:
    return {key: routes(members) for key, members in group_by(digests, axes).items()}


@dataclass(frozen=True)
class Traits:
    """What a task is, as far as its structure goes."""

    task: str
    level: int
    world: bool
    """Whether the model acts in a world, turn by turn."""
    judged: bool = False
    """Whether no rule can grade it."""
    judge_offered: bool = False
    """Whether a judge may, where the user names one."""


def dimensions(traits: Traits) -> dict[str, str]:
    """Where a task stands in each of the paper's structural dimensions."""
    return {
        "level": str(traits.level),
        "data": "interactive" if traits.world else "static",
        "grading": "judge" if traits.judged else "rule or judge" if traits.judge_offered else "rule",
        "turns": "multi" if traits.world else "single",
        "online rollouts": "needed" if traits.world else "not needed",
    }


class Covered(Record):
    dimension: str
    value: str
    tasks: tuple[str, ...]
    """All that there are of this kind."""
    run: tuple[str, ...]
    """Those of which some run has a gain."""
    runs: int
    """That have a gain."""
    excluded: int


def coverage(tasks: Sequence[Traits], digests: Sequence[Digest]) -> tuple[Covered, ...]:
    """Of each value of each dimension: which tasks there are, and which were run. Runs of tasks that are not
    told of are in no dimension: `untold` names them."""
    by_task = {key[0]: members for key, members in group_by(digests, ("task",)).items()}
    found: dict[tuple[str, str], list[str]] = {}
    for traits in tasks:
        for place in dimensions(traits).items():
            found.setdefault(place, []).append(traits.task)
    return tuple(
        _covered(dimension, value, sorted(names), by_task)
        for (dimension, value), names in sorted(found.items())
    )


def untold(tasks: Sequence[Traits], digests: Sequence[Digest]) -> tuple[str, ...]:
    return tuple(sorted({each.task for each in digests} - {each.task for each in tasks}))


def _covered(
    dimension: str, value: str, tasks: Sequence[str], by_task: Mapping[str, Sequence[Digest]]
) -> Covered:
    counts = {task: sum(not each.excluded for each in by_task.get(task, ())) for task in tasks}
    return Covered(
        dimension=dimension,
        value=value,
        tasks=tuple(tasks),
        run=tuple(task for task in tasks if counts[task]),
        runs=sum(counts.values()),
        excluded=sum(len(by_task.get(task, ())) for task in tasks) - sum(counts.values()),
    )
