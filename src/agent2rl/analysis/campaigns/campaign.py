"""All that is said of many runs together. Pure: the same digests, in any order, give the same record."""

from collections.abc import Mapping, Sequence

from agent2rl.analysis.campaigns.digest import Digest, count_contaminated, group_by, select_runs
from agent2rl.analysis.campaigns.families import Family, families
from agent2rl.analysis.campaigns.heatmap import Heatmap, heatmap
from agent2rl.analysis.campaigns.leaderboard import ENTRY, Leaderboard, entry_names, leaderboard
from agent2rl.analysis.campaigns.passk import BestOf, best_of
from agent2rl.analysis.campaigns.resampling import counted
from agent2rl.analysis.campaigns.scaling import Scaling, scaling, scalings
from agent2rl.analysis.campaigns.shares import Covered, Routes, Traits, coverage, route_shares, untold
from agent2rl.core.record import Record
from agent2rl.core.records import Protocol
from agent2rl.core.units import without_path

MOST_LINES = 6
"""In one panel of a figure."""
MOST_COURSES = 60
"""Of single runs, in one panel."""
TOGETHER = "all runs"


class Line(Record):
    """One of several that are shown together: an entry, or an agent, or all runs."""

    name: str
    best_of: dict[str, BestOf]
    """By task."""
    scaling: dict[str, Scaling]
    """By what was spent."""
    contaminated: int = 0
    """Of its runs."""


class Course(Record):
    """One run: the best so far as its agent was told it, and what was left of that."""

    run_id: str
    line: str
    points: tuple[tuple[float, float], ...]
    """Seconds of the agent's time, and points above the untouched model."""
    seconds: float
    gain: float
    contaminated: bool | None = None


class Trajectories(Record):
    task: str
    courses: tuple[Course, ...]
    """Some of them, evenly chosen, where there are many."""
    runs: int
    all: Scaling


class Campaign(Record):
    name: str
    about: str
    protocol: Protocol
    other_protocol: int
    """Runs under the other protocol, which are not in any figure."""
    unreadable: tuple[str, ...]
    """Runs whose directories could not be read, and why."""
    seeds: int
    leaderboard: Leaderboard
    heatmaps: tuple[Heatmap, ...]
    families: tuple[Family, ...]
    lines: tuple[Line, ...]
    trajectories: tuple[Trajectories, ...]
    routes_by_task: dict[str, Routes]
    routes_by_agent: dict[str, Routes]
    coverage: tuple[Covered, ...]
    untold: tuple[str, ...]
    """Tasks whose structure is not known here."""


def campaign(
    digests: Sequence[Digest],
    tasks: Sequence[Traits],
    name: str = "",
    about: str = "",
    protocol: Protocol = "heldout",
    unreadable: Sequence[str] = (),
    include_contaminated: bool = False,
) -> Campaign:
    """`tasks` are those that could be run."""
    selection = select_runs(digests, protocol, include_contaminated)
    mine = selection.runs
    by_line = lines(mine)
    return Campaign(
        name=name,
        about=about,
        protocol=protocol,
        other_protocol=selection.other_protocol,
        unreadable=tuple(unreadable),
        seeds=len({each.seed for each in mine}),
        leaderboard=leaderboard(digests, protocol, include_contaminated),
        heatmaps=tuple(heatmap(mine, axis, "task") for axis in _varying(mine)),
        families=families(mine),
        lines=tuple(_line(label, members) for label, members in by_line.items()),
        trajectories=_trajectories(mine, by_line),
        routes_by_task=_routes(mine, "task"),
        routes_by_agent=_routes(mine, "agent"),
        coverage=coverage(tasks, mine),
        untold=untold(tasks, mine),
    )


def lines(digests: Sequence[Digest]) -> Mapping[str, Sequence[Digest]]:
    """Entries where they are few enough to be told apart in a figure, else agents, else all in one."""
    names = entry_names(digests)
    entries = {names[key]: members for key, members in group_by(digests, ENTRY).items()}
    agents = {without_path(key[0]): members for key, members in group_by(digests, ("agent",)).items()}
    fitting = [found for found in (entries, agents) if len(found) <= MOST_LINES]
    return fitting[0] if fitting else {TOGETHER: digests}


def _varying(digests: Sequence[Digest]) -> list[str]:
    """Agents always, so that there is a table; the others where there is something to compare."""
    return [axis for axis in ENTRY if axis == "agent" or len(group_by(digests, (axis,))) > 1]


def _line(name: str, digests: Sequence[Digest]) -> Line:
    return Line(
        name=name,
        best_of={task: best_of(members) for (task,), members in group_by(digests, ("task",)).items()},
        scaling={axis: found for axis, found in scalings(digests).items() if found.grid},
        contaminated=count_contaminated(counted(digests)),
    )


def _trajectories(
    digests: Sequence[Digest], by_line: Mapping[str, Sequence[Digest]]
) -> tuple[Trajectories, ...]:
    line = {each.run_id: name for name, members in by_line.items() for each in members}
    return tuple(
        Trajectories(
            task=task,
            courses=tuple(_course(each, line[each.run_id]) for each in _some(counted(members))),
            runs=len(counted(members)),
            all=scaling(members, "seconds"),
        )
        for (task,), members in group_by(digests, ("task",)).items()
    )


def _some(runs: Sequence[Digest]) -> Sequence[Digest]:
    step = max(1, -(-len(runs) // MOST_COURSES))
    return runs[::step]


def _course(run: Digest, line: str) -> Course:
    return Course(
        run_id=run.run_id,
        line=line,
        points=tuple((point.spent.seconds, point.best) for point in run.curve),
        seconds=max(run.total.seconds, *(point.spent.seconds for point in run.curve), 0.0),
        gain=run.gain or 0.0,
        contaminated=run.contaminated,
    )


def _routes(digests: Sequence[Digest], axis: str) -> dict[str, Routes]:
    return {key[0]: found for key, found in route_shares(digests, (axis,)).items()}
