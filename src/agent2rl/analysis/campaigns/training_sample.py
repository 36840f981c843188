"""Choose whose training curves are drawn together, and keep as much of the curves as a figure can show.

Runs are chosen in turns over entries and by seed, never by their results.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest

from agent2rl.analysis.campaigns.resampling import select_counted
from agent2rl.analysis.campaigns.run_digest import RunDigest, group_by
from agent2rl.analysis.findings import METRICS, TrainingCurves, TrainingSeries
from agent2rl.analysis.logs import thin_points
from agent2rl.core.base_record import Record

MOST_RUNS = 12
"""Runs of a task in one figure: more lines cannot be told apart."""
MOST_READ = 36
"""Runs of a task whose curves are looked for: those of an agent that does not train have none."""
MOST_TRAININGS = 4
"""Trainings of a run, the last ones."""
MOST_POINTS = 120
"""Points of a curve."""
GREATEST = 1e30
"""Greater values are not drawn."""


class RunTrainings(Record):
    """The training curves of one run, as far as a figure of several runs shows them."""

    run_id: str
    line: str
    """The entry or agent whose colour it has."""
    trainings: tuple[TrainingCurves, ...]


class TaskTrainings(Record):
    """The training curves of the runs of one task."""

    task: str
    runs: tuple[RunTrainings, ...]
    """A selection if there are many, by entry and seed."""


def thin_trainings(trainings: Sequence[TrainingCurves]) -> tuple[TrainingCurves, ...]:
    """Keep the last trainings with something to draw, and some points of each curve."""
    thinned = (
        each.model_copy(update={"series": tuple(map(_thin_series, _select_series(each)))})
        for each in trainings
    )
    drawn = [each for each in thinned if any(_has_value(series) for series in each.series)]
    return tuple(drawn[-MOST_TRAININGS:])


def _select_series(training: TrainingCurves) -> list[TrainingSeries]:
    """Return at most one series for each metric."""
    by_metric = {series.metric: series for series in reversed(training.series)}
    return [by_metric[metric] for metric in METRICS if metric in by_metric]


def _thin_series(series: TrainingSeries) -> TrainingSeries:
    points = [
        (step, value if value is not None and abs(value) < GREATEST else None)
        for step, value in series.points
        if abs(step) < GREATEST
    ]
    return series.model_copy(update={"points": thin_points(points, MOST_POINTS)})


def _has_value(series: TrainingSeries) -> bool:
    return any(value is not None for _, value in series.points)


def gather_task_trainings(
    digests: Sequence[RunDigest],
    by_line: Mapping[str, Sequence[RunDigest]],
    read: Callable[[str], Sequence[TrainingCurves]],
) -> tuple[TaskTrainings, ...]:
    """Gather the curves of some runs of each task; `read` returns those of a run by its id."""
    gathered = []
    for (task,), members in group_by(digests, ("task_setting",)).items():
        runs: list[RunTrainings] = []
        for line, run_id in _take_turns(members, by_line)[:MOST_READ]:
            if len(runs) < MOST_RUNS and (trainings := thin_trainings(read(run_id))):
                runs.append(RunTrainings(run_id=run_id, line=line, trainings=trainings))
        if runs:
            gathered.append(TaskTrainings(task=task, runs=tuple(runs)))
    return tuple(gathered)


def _take_turns(
    members: Sequence[RunDigest], by_line: Mapping[str, Sequence[RunDigest]]
) -> list[tuple[str, str]]:
    """Return line and id of the runs: the first of each line, the second of each, and so on."""
    counted = {each.run_id for each in select_counted(members)}
    queues = [
        [(line, each.run_id) for each in sorted(runs, key=_by_seed) if each.run_id in counted]
        for line, runs in by_line.items()
    ]
    return [each for each in chain.from_iterable(zip_longest(*queues)) if each is not None]


def _by_seed(digest: RunDigest) -> tuple[int, str]:
    return digest.seed, digest.run_id
