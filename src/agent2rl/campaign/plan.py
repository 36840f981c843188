"""What a campaign will take, as far as earlier runs and its own budgets tell.

Time: the agent's budget, and what earlier runs of the task took beside it (set-up, baseline, held-out
grading). Cost: the driver's limit in dollars; without one, what earlier runs with the same agent and driver
cost. What is not known is None, and is left out of sums that say so.
"""

import heapq
from collections.abc import Mapping, Sequence
from statistics import fmean

from agent2rl.campaign.experiment_status import CampaignRunSummary, ExperimentStatus, State
from agent2rl.core.record import Record
from agent2rl.core.records import Ending, RunSpec

LEAST_SECONDS = 600.0
"""Beside the budget, for a scheduler that ends what takes longer than was said."""


class PlannedRun(Record):
    experiment: str
    cell: dict[str, str | int]
    state: State
    chosen: bool
    """Whether it would be run now."""
    run_id: str | None = None
    ending: Ending | None = None
    score: float | None = None
    improvement: float | None = None
    detail: str = ""
    command: str
    seconds: float
    """That it is expected to take."""
    beside_known: bool
    """Whether that holds what is beside the budget."""
    usd: float | None = None
    """That it is expected to cost at most."""


class CampaignPlan(Record):
    campaign: str
    about: str
    runs: tuple[PlannedRun, ...]
    parallel: int | None
    """Runs at once; None: the cluster decides."""
    run_seconds: float
    """Of all that would be run now, one after another."""
    wall_seconds: float | None
    """With so many at once."""
    usd: float
    """Of those whose cost is known."""
    usd_unknown: int
    """How many it is not known of."""


class CostEstimator:
    """What earlier runs took."""

    def __init__(self, past: Mapping[str, Sequence[CampaignRunSummary]]) -> None:
        self._runs = [run for runs in past.values() for run in runs if run.state == "done"]

    def list_overhead_seconds(self, spec: RunSpec) -> list[float]:
        """The time beside the agent's, of runs of the same task: with the same model, or with any."""
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
        """Enough for all but the very slow: for schedulers that want a limit."""
        beside = self.list_overhead_seconds(spec)
        more = max(LEAST_SECONDS, 2 * max(beside)) if beside else max(LEAST_SECONDS, spec.grading_seconds)
        return spec.budget.wall_seconds + more


def make_plan(
    name: str,
    about: str,
    standings: Sequence[ExperimentStatus],
    chosen: Sequence[ExperimentStatus],
    experience: CostEstimator,
    parallel: int | None,
) -> CampaignPlan:
    wanted = {one.experiment.id for one in chosen if one.state != "running"}
    runs = tuple(_plan_run(one, one.experiment.id in wanted, experience) for one in standings)
    now = [run for run in runs if run.chosen]
    return CampaignPlan(
        campaign=name,
        about=about,
        runs=runs,
        parallel=parallel,
        run_seconds=sum(run.seconds for run in now),
        wall_seconds=estimate_makespan([run.seconds for run in now], parallel) if parallel else None,
        usd=sum(run.usd or 0.0 for run in now),
        usd_unknown=sum(run.usd is None for run in now),
    )


def estimate_makespan(seconds: Sequence[float], slots: int) -> float:
    """Until the last of them ends, where each begins as soon as there is room, in this order."""
    ends = [0.0] * slots
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def _plan_run(one: ExperimentStatus, chosen: bool, experience: CostEstimator) -> PlannedRun:
    spec, run = one.experiment.spec, one.run
    beside = experience.list_overhead_seconds(spec)
    return PlannedRun(
        experiment=one.experiment.id,
        cell=dict(one.experiment.cell),
        state=one.state,
        chosen=chosen,
        run_id=run.paths.run_id if run else None,
        ending=run.ending if run else None,
        score=run.score if run else None,
        improvement=run.improvement if run else None,
        detail=one.detail,
        command=one.experiment.command,
        seconds=spec.budget.wall_seconds + (fmean(beside) if beside else 0.0),
        beside_known=bool(beside),
        usd=experience.estimate_usd(spec),
    )
