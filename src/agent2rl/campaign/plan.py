"""Estimate the time and cost of a campaign from its budgets and from earlier runs, or choose a part of it.

Time: the agent's budget plus the overhead of earlier runs of the task (set-up, baseline, held-out grading).
Cost: the driver's dollar limit, or without one, the mean cost of earlier runs with the same agent and driver.
Unknown values are None and are left out of the sums; the plan shows how many there are.
GPU hours: the expected time of the runs times the GPUs that each one reserves.
"""

import heapq
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import ceil
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from agent2rl.campaign.campaign_file import Cell, Experiment
from agent2rl.campaign.experiment_status import CampaignRunSummary, ExperimentStatus, State
from agent2rl.core.base_record import Record
from agent2rl.core.records import Ending, RunSpec
from agent2rl.gateway.prices import Prices

LEAST_SECONDS = 600.0
"""Least overhead in a time limit for a scheduler, which kills jobs that exceed it."""


class PlannedRun(Record):
    experiment: str
    cell: dict[str, str | int]
    state: State
    chosen: bool
    """Whether `campaign run` would run it now."""
    run_id: str | None = None
    ending: Ending | None = None
    score: float | None = None
    improvement: float | None = None
    detail: str = ""
    command: str
    seconds: float
    """Expected duration."""
    beside_known: bool
    """Whether the duration includes the overhead beside the budget."""
    usd: float | None = None
    """Expected cost (an upper bound, if the run has a limit)."""


class DriverCost(Record):
    """The cost of the chosen runs of one driver."""

    driver: str
    """Empty for runs without a driver."""
    runs: int
    usd: float
    """Total of the known costs."""
    usd_unknown: int
    """Number of runs with unknown cost."""
    at_most: bool
    """Whether every run has a limit in dollars, so that the total is an upper bound."""
    usd_per_million_input: float | None = None
    """None: no price is known."""
    usd_per_million_output: float | None = None


class CampaignPlan(Record):
    campaign: str
    about: str
    runs: tuple[PlannedRun, ...]
    parallel: int | None
    """Parallel runs. None: the cluster decides."""
    run_seconds: float
    """Total duration of the chosen runs, one after another."""
    wall_seconds: float | None
    """Total duration with this many parallel runs."""
    usd: float
    """Total of the known costs."""
    usd_unknown: int
    """Number of runs with unknown cost."""
    gpus: int = 0
    """GPUs that each run reserves."""
    gpu_hours: float = 0.0
    """Of the chosen runs together."""
    drivers: tuple[DriverCost, ...] = ()
    judges: tuple[str, ...] = ()
    """LLM judges of the chosen runs. Their cost is in no estimate."""
    fraction: float | None = None
    """The part of the campaign that is planned; None for all of it."""
    whole: int | None = None
    """Number of experiments of the whole campaign."""
    warnings: tuple[str, ...] = ()
    """What the runs need and this machine does not have."""


class CostEstimator:
    """Estimates time and cost from finished runs."""

    def __init__(self, runs_by_experiment: Mapping[str, Sequence[CampaignRunSummary]]) -> None:
        self._runs = [run for runs in runs_by_experiment.values() for run in runs if run.state == "done"]

    def list_overhead_seconds(self, spec: RunSpec) -> list[float]:
        """Return the overheads of earlier runs of the task, with the same model if there are any."""
        same = [run for run in self._runs if run.spec.task == spec.task]
        closer = [run for run in same if run.spec.model == spec.model]
        return [
            run.seconds - run.agent_seconds
            for run in closer or same
            if run.seconds is not None and run.agent_seconds is not None
        ]

    def estimate_usd(self, spec: RunSpec) -> float | None:
        if spec.driver is None:
            return 0.0
        if spec.budget.usd is not None:
            return spec.budget.usd
        same = [run for run in self._runs if (run.spec.agent, run.spec.driver) == (spec.agent, spec.driver)]
        known = [run.usd for run in same if run.usd is not None]
        return fmean(known) if known else None

    def estimate_limit_seconds(self, spec: RunSpec) -> float:
        """Return a generous time limit, for schedulers that need one."""
        overheads = self.list_overhead_seconds(spec)
        overhead = (
            max(LEAST_SECONDS, 2 * max(overheads)) if overheads else max(LEAST_SECONDS, spec.grading_seconds)
        )
        return spec.budget.max_wall_seconds(spec.clock) + overhead


def make_plan(
    name: str,
    about: str,
    statuses: Sequence[ExperimentStatus],
    chosen: Sequence[ExperimentStatus],
    experience: CostEstimator,
    parallel: int | None,
    gpus: int = 0,
    prices: Prices | None = None,
) -> CampaignPlan:
    chosen_ids = {status.experiment.id for status in chosen if status.state != "running"}
    runs = tuple(_plan_run(status, status.experiment.id in chosen_ids, experience) for status in statuses)
    chosen_runs = [run for run in runs if run.chosen]
    chosen_specs = [status.experiment.spec for status in statuses if status.experiment.id in chosen_ids]
    return CampaignPlan(
        campaign=name,
        about=about,
        runs=runs,
        parallel=parallel,
        run_seconds=sum(run.seconds for run in chosen_runs),
        wall_seconds=estimate_makespan([run.seconds for run in chosen_runs], parallel) if parallel else None,
        usd=sum(run.usd or 0.0 for run in chosen_runs),
        usd_unknown=sum(run.usd is None for run in chosen_runs),
        gpus=gpus,
        gpu_hours=gpus * sum(run.seconds for run in chosen_runs) / 3600,
        drivers=_total_by_driver(chosen_specs, experience, prices),
        judges=_list_judges(chosen_specs),
    )


def _total_by_driver(
    chosen: Sequence[RunSpec], experience: CostEstimator, prices: Prices | None
) -> tuple[DriverCost, ...]:
    by_driver: dict[str, list[RunSpec]] = {}
    for spec in chosen:
        by_driver.setdefault(spec.driver or "", []).append(spec)
    return tuple(
        _total_driver(driver, specs, [experience.estimate_usd(spec) for spec in specs], prices)
        for driver, specs in sorted(by_driver.items())
    )


def _total_driver(
    driver: str, specs: Sequence[RunSpec], costs: Sequence[float | None], prices: Prices | None
) -> DriverCost:
    price = prices.find_price(driver.partition("@")[0]) if prices and driver else None
    return DriverCost(
        driver=driver,
        runs=len(specs),
        usd=sum(usd or 0.0 for usd in costs),
        usd_unknown=sum(usd is None for usd in costs),
        at_most=bool(driver) and all(spec.budget.usd is not None for spec in specs),
        usd_per_million_input=price.input if price else None,
        usd_per_million_output=price.output if price else None,
    )


def _list_judges(specs: Sequence[RunSpec]) -> tuple[str, ...]:
    return tuple(sorted({name for spec in specs for name in (spec.judge, spec.train_judge) if name}))


def estimate_makespan(seconds: Sequence[float], slots: int) -> float:
    """Return when the last run ends if each starts in this order as soon as a slot is free."""
    ends = [0.0] * slots
    for duration in seconds:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)


def _plan_run(status: ExperimentStatus, chosen: bool, experience: CostEstimator) -> PlannedRun:
    spec, run = status.experiment.spec, status.run
    overheads = experience.list_overhead_seconds(spec)
    return PlannedRun(
        experiment=status.experiment.id,
        cell=dict(status.experiment.cell),
        state=status.state,
        chosen=chosen,
        run_id=run.paths.run_id if run else None,
        ending=run.ending if run else None,
        score=run.score if run else None,
        improvement=run.improvement if run else None,
        detail=status.detail,
        command=status.experiment.command,
        seconds=spec.budget.wall_seconds + (fmean(overheads) if overheads else 0.0),
        beside_known=bool(overheads),
        usd=experience.estimate_usd(spec),
    )


# Choose a balanced part of a campaign.
#
# All combinations get one fixed order, and a fraction takes the first ones of it. So the same fraction is
# always the same part, and a larger fraction contains a smaller one. The order takes from the tasks in turn.
# Within the task whose turn it is, it takes the combination whose values on the other axes, and then whose
# pairs of values, were taken least so far.


FIRST = "task"
Integers = NDArray[np.int64]


def select_fraction(experiments: Sequence[Experiment], fraction: float) -> tuple[Experiment, ...]:
    """Return this part of the experiments, at least one, in their own order."""
    count = count_part(len(experiments), fraction)
    chosen = order_cells([experiment.cell for experiment in experiments], count)
    return tuple(experiments[place] for place in sorted(chosen))


def count_part(count: int, fraction: float) -> int:
    """Return how many of `count` a fraction is, rounded up. 0.1 of 30 is 3, whatever floating point says."""
    return min(count, max(1, ceil(round(count * fraction, 6))))


def order_cells(cells: Sequence[Cell], count: int) -> list[int]:
    """Return the places of the first `count` combinations in the balanced order."""
    axes = [axis for axis in cells[0] if len({cell[axis] for cell in cells}) > 1]
    codes = {axis: _number_values([cell[axis] for cell in cells]) for axis in axes}
    task = codes.pop(FIRST, np.zeros(len(cells), dtype=np.int64))
    pairs = [_join_codes(first, second) for first, second in combinations([task, *codes.values()], 2)]
    usages = [_Usage([task]), *(_Usage(each) for each in (list(codes.values()), pairs) if each)]
    left = np.ones(len(cells), dtype=np.bool_)
    order = []
    for _ in range(count):
        places = np.flatnonzero(left)
        for usage in usages:
            places = places[usage.weights[places] == usage.weights[places].min()]
        order.append(place := int(places[0]))
        left[place] = False
        for usage in usages:
            usage.take(place)
    return order


class _Usage:
    """How often the values of each combination were taken. On an axis with many values, a use weighs more."""

    def __init__(self, codes: Sequence[Integers]) -> None:
        self._codes = [(each, int(each.max()) + 1) for each in codes]
        self.weights: Integers = np.zeros(len(codes[0]), dtype=np.int64)

    def take(self, place: int) -> None:
        for codes, size in self._codes:
            self.weights += size * (codes == codes[place])


def _number_values(values: Sequence[str | int]) -> Integers:
    """Number the values in the order of the campaign file."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([numbers[value] for value in values], dtype=np.int64)


def _join_codes(first: Integers, second: Integers) -> Integers:
    codes: Integers = np.unique(first * (int(second.max()) + 1) + second, return_inverse=True)[1]
    return codes
