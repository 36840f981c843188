"""Find the state of each experiment of a campaign from the runs and claims in the runs directory."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from agent2rl.campaign.campaign_file import Experiment, compute_experiment_id
from agent2rl.campaign.claims_and_sessions import ExperimentClaim, ExperimentClaims
from agent2rl.core.errors import UserError
from agent2rl.core.records import Ending, RunResult, RunSpec
from agent2rl.record import reader
from agent2rl.record.paths import RunPaths
from agent2rl.report.export import runs_below

logger = logging.getLogger(__name__)

# The runs of each experiment in a runs directory

State = Literal["todo", "running", "done", "failed", "stopped", "crashed"]
BLAMELESS_ENDINGS: frozenset[Ending] = frozenset({"failed", "login-failed", "rate-limited", "driver-failed"})
"""Endings that say nothing about the agent. All others are the result of the experiment, good or bad:
repeating those until one goes well would mean choosing the result."""
ENDINGS: tuple[Ending, ...] = get_args(Ending)


@dataclass(frozen=True)
class CampaignRunSummary:
    """What a campaign needs to know about a run."""

    paths: RunPaths
    spec: RunSpec
    state: State
    ending: Ending | None = None
    reason: str = ""
    seconds: float | None = None
    """From its start to its end, or until now."""
    agent_seconds: float | None = None
    score: float | None = None
    """The score of the run; while it runs, the best feedback score so far."""
    improvement: float | None = None
    contaminated: bool | None = None
    """None: unknown, or the run has not ended."""
    usd: float | None = None

    @property
    def settled(self) -> bool:
        """Whether the run is final. A stopped run is not: the experiment is run again."""
        return self.state in ("done", "failed")


class RunHistory:
    """The runs of a directory by experiment. Caches what cannot change any more."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._specs: dict[str, tuple[str, RunSpec] | None] = {}
        self._settled: dict[str, CampaignRunSummary] = {}

    def list_runs_by_experiment(self) -> dict[str, list[CampaignRunSummary]]:
        """Return all runs by experiment id, oldest first."""
        by_experiment: defaultdict[str, list[CampaignRunSummary]] = defaultdict(list)
        for paths in runs_below(self._runs):
            identity = self._identify_run(paths)
            if identity:
                by_experiment[identity[0]].append(self._summarize_run(paths, identity[1]))
        return dict(by_experiment)

    def list_experiment_runs(self, experiment: str) -> list[CampaignRunSummary]:
        """Return the runs of one experiment, oldest first."""
        identified = ((paths, self._identify_run(paths)) for paths in runs_below(self._runs))
        return [
            self._summarize_run(paths, identity[1])
            for paths, identity in identified
            if identity and identity[0] == experiment
        ]

    def _identify_run(self, paths: RunPaths) -> tuple[str, RunSpec] | None:
        if paths.run_id not in self._specs:
            try:
                spec = RunSpec.model_validate_json(paths.spec.read_bytes())
            except OSError:
                return None  # not cached: the storage may be unavailable for a while
            except ValidationError as error:
                logger.debug("%s has no valid spec.json: %s", paths.run_id, error)
                self._specs[paths.run_id] = None  # of another version, or damaged: no experiment's run
            else:
                self._specs[paths.run_id] = compute_experiment_id(spec), spec
        return self._specs[paths.run_id]

    def _summarize_run(self, paths: RunPaths, spec: RunSpec) -> CampaignRunSummary:
        if paths.run_id in self._settled:
            return self._settled[paths.run_id]
        try:
            result = RunResult.model_validate_json(paths.result.read_bytes())
        except FileNotFoundError:
            return _summarize_unfinished(paths, spec)
        except (OSError, ValidationError):
            return CampaignRunSummary(paths, spec, "crashed", reason="result.json cannot be read")
        self._settled[paths.run_id] = _summarize_finished(paths, result)
        return self._settled[paths.run_id]


def decide_state(runs: Sequence[CampaignRunSummary], claimed: bool) -> State:
    """Return the state of an experiment: running if claimed, done if any run is, else the last run's."""
    states = [run.state for run in runs]
    if claimed or "running" in states:
        return "running"
    if "done" in states:
        return "done"
    return states[-1] if states else "todo"


def _summarize_finished(paths: RunPaths, result: RunResult) -> CampaignRunSummary:
    ending = result.ending
    return CampaignRunSummary(
        paths=paths,
        spec=result.spec,
        state="stopped" if ending == "interrupted" else "failed" if ending in BLAMELESS_ENDINGS else "done",
        ending=ending,
        reason=result.reason,
        seconds=result.ended_at - result.started_at,
        agent_seconds=result.clock.agent if result.clock else None,
        score=result.score,
        improvement=result.improvement,
        contaminated=result.contaminated,
        usd=result.usage.usd if result.usage else None,
    )


def _summarize_unfinished(paths: RunPaths, spec: RunSpec) -> CampaignRunSummary:
    """Summarize a run without a result, running or crashed. The ledger shows how far it got."""
    try:
        view = reader.read_run(paths)
    except (UserError, OSError) as error:
        return CampaignRunSummary(paths, spec, "crashed", reason=str(error))
    scored = [submission for submission in view.submissions if submission.score]
    best = max(scored, key=lambda submission: submission.improvement or 0.0, default=None)
    began = view.chain.entries[0].time if view.chain.entries else None
    running = view.state == "running"
    return CampaignRunSummary(
        paths=paths,
        spec=spec,
        state="running" if running else "crashed",
        reason="" if running else "its harness ended without a result",
        seconds=time.time() - began if began and running else None,
        score=best.score.value if best and best.score else None,
        improvement=best.improvement if best else None,
    )


RUNNABLE_STATES: frozenset[State] = frozenset({"todo", "stopped", "crashed"})
"""States that `campaign run` runs. Failed experiments wait for `campaign retry`."""


@dataclass(frozen=True)
class ExperimentStatus:
    experiment: Experiment
    state: State
    run: CampaignRunSummary | None
    """The run that determines the state."""
    settled: int
    """Number of finished runs."""
    holder: ExperimentClaim | None

    @property
    def detail(self) -> str:
        """Details of the state for people."""
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
    experiments: Sequence[Experiment], history: RunHistory, claims: ExperimentClaims
) -> list[ExperimentStatus]:
    runs, now = history.list_runs_by_experiment(), claims.read_storage_clock()
    return [
        _make_status(experiment, runs.get(experiment.id, []), claims.find_holder(experiment.id, now))
        for experiment in experiments
    ]


def _make_status(
    experiment: Experiment, runs: list[CampaignRunSummary], holder: ExperimentClaim | None
) -> ExperimentStatus:
    state = decide_state(runs, holder is not None)
    matching = [run for run in runs if run.state == state]
    run = matching[-1] if matching else None
    return ExperimentStatus(experiment, state, run, sum(run.settled for run in runs), holder)


def select_runnable(statuses: Iterable[ExperimentStatus], again: bool) -> list[ExperimentStatus]:
    """Select what to run. Running experiments come last: their holder may die and leave them to us."""
    runnable = [
        status for status in statuses if again or status.state in RUNNABLE_STATES or status.state == "running"
    ]
    return sorted(runnable, key=lambda status: status.state == "running")


def select_failed(
    statuses: Iterable[ExperimentStatus], all_failed: bool, endings: Sequence[Ending]
) -> list[ExperimentStatus]:
    """Select what to run again."""
    return [
        status
        for status in statuses
        if (all_failed and status.state == "failed")
        or (status.state in ("done", "failed", "stopped") and status.run and status.run.ending in endings)
    ]
