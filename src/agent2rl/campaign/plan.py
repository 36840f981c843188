"""Estimate the time and cost of a campaign from its budgets and from earlier runs.

Time: the agent's budget plus the overhead of earlier runs of the task (set-up, baseline, held-out grading).
Cost: the driver's dollar limit, or without one, the mean cost of earlier runs with the same agent and driver.
Unknown values are None and are left out of the sums; the plan shows how many there are.
GPU hours: the expected time of the runs times the GPUs that each one reserves.
"""

import heapq
from collections.abc import Mapping, Sequence
from statistics import fmean

from agent2rl.campaign.experiment_status import CampaignRunSummary, ExperimentStatus, State
from agent2rl.core.record import Record
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
