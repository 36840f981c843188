"""Where each experiment of a campaign stands, from the runs and claims in the runs directory."""

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

# What a runs directory says of experiments: which were run, how they ended, which are going.

State = Literal["todo", "running", "done", "failed", "stopped", "crashed"]
BLAMELESS_ENDINGS: frozenset[Ending] = frozenset({"failed", "login-failed", "rate-limited", "driver-failed"})
"""Endings that say nothing of the agent. All others are what came of the experiment, good or bad: to run
those again until one goes well would be to choose the result."""
ENDINGS: tuple[Ending, ...] = get_args(Ending)


@dataclass(frozen=True)
class CampaignRunSummary:
    """A run, as far as a campaign wants to know."""

    paths: RunPaths
    spec: RunSpec
    state: State
    ending: Ending | None = None
    reason: str = ""
    seconds: float | None = None
    """From its beginning to its end, or to now."""
    agent_seconds: float | None = None
    score: float | None = None
    """That ranks; while it runs, the best of the feedback split so far."""
    improvement: float | None = None
    contaminated: bool | None = None
    """None: unknown, or not over."""
    usd: float | None = None

    @property
    def settled(self) -> bool:
        """Whether it is over for good. One that was stopped is not: it is run anew."""
        return self.state in ("done", "failed")


class RunHistory:
    """The runs of a directory by experiment. What cannot change any more is read once."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._specs: dict[str, tuple[str, RunSpec] | None] = {}
        self._settled: dict[str, CampaignRunSummary] = {}

    def list_runs_by_experiment(self) -> dict[str, list[CampaignRunSummary]]:
        """By experiment, the oldest run first."""
        found: defaultdict[str, list[CampaignRunSummary]] = defaultdict(list)
        for paths in runs_below(self._runs):
            known = self._identify_run(paths)
            if known:
                found[known[0]].append(self._summarize_run(paths, known[1]))
        return dict(found)

    def list_experiment_runs(self, experiment: str) -> list[CampaignRunSummary]:
        """The runs of one experiment, the oldest first."""
        known = ((paths, self._identify_run(paths)) for paths in runs_below(self._runs))
        return [self._summarize_run(paths, one[1]) for paths, one in known if one and one[0] == experiment]

    def _identify_run(self, paths: RunPaths) -> tuple[str, RunSpec] | None:
        if paths.run_id not in self._specs:
            try:
                spec = RunSpec.model_validate_json(paths.spec.read_bytes())
            except OSError:
                return None  # for a while the storage may be away
            except ValidationError:
                self._specs[paths.run_id] = None  # of another version, or damaged: nobody's experiment
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
    """Of an experiment: what is going on now, else the best that came of it, else the last."""
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
    """Going, or crashed. The ledger tells how far it is."""
    try:
        view = reader.read_run(paths)
    except (UserError, OSError) as error:
        return CampaignRunSummary(paths, spec, "crashed", reason=str(error))
    scored = [each for each in view.submissions if each.score]
    best = max(scored, key=lambda each: each.improvement or 0.0, default=None)
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
