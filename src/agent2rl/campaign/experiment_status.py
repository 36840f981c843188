"""Where each experiment of a campaign stands, by what lies in the runs directory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent2rl.campaign.experiment_claims import ExperimentClaim, ExperimentClaims
from agent2rl.campaign.experiments import Experiment
from agent2rl.campaign.run_history import CampaignRunSummary, RunHistory, State, decide_state
from agent2rl.core.records import Ending

RUNNABLE_STATES: frozenset[State] = frozenset({"todo", "stopped", "crashed"})
"""What `campaign run` takes up. A failed one waits for `campaign retry`."""


@dataclass(frozen=True)
class ExperimentStatus:
    experiment: Experiment
    state: State
    run: CampaignRunSummary | None
    """The one that made the state."""
    settled: int
    """Runs of it that have ended."""
    holder: ExperimentClaim | None

    @property
    def detail(self) -> str:
        """What a reader of the state wants to know further."""
        if self.state == "running":
            return f"on {self.holder.host}" if self.holder else "outside of campaigns"
        if self.run is None:
            return ""
        mark = "contaminated; " if self.run.contaminated else ""
        if self.run.ending == "completed":
            return mark.removesuffix("; ")
        ending = "" if self.run.ending in (None, "interrupted") else f"{self.run.ending}: "
        return (mark + ending + self.run.reason).removesuffix(": ")


def find_statuses(
    experiments: Sequence[Experiment], past: RunHistory, claims: ExperimentClaims
) -> list[ExperimentStatus]:
    runs, now = past.list_runs_by_experiment(), claims.read_storage_clock()
    return [
        _make_status(each, runs.get(each.id, []), claims.find_holder(each.id, now)) for each in experiments
    ]


def _make_status(
    experiment: Experiment, runs: list[CampaignRunSummary], holder: ExperimentClaim | None
) -> ExperimentStatus:
    state = decide_state(runs, holder is not None)
    fitting = [run for run in runs if run.state == state]
    run = fitting[-1] if fitting else None
    return ExperimentStatus(experiment, state, run, sum(each.settled for each in runs), holder)


def select_runnable(standings: Iterable[ExperimentStatus], again: bool) -> list[ExperimentStatus]:
    """What is to be run: what nobody is at work on first, then what somebody is, lest he dies."""
    wanted = [one for one in standings if again or one.state in RUNNABLE_STATES or one.state == "running"]
    return sorted(wanted, key=lambda one: one.state == "running")


def select_failed(
    standings: Iterable[ExperimentStatus], all_failed: bool, endings: Sequence[Ending]
) -> list[ExperimentStatus]:
    """What is to be run once more."""
    return [
        one
        for one in standings
        if (all_failed and one.state == "failed")
        or (one.state in ("done", "failed", "stopped") and one.run and one.run.ending in endings)
    ]
