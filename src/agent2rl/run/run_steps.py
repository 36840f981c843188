"""The steps of a run, each noted on its record, and the outcome that they fill in. Steps that the record has
already are not done again.
"""

import threading
import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import JsonValue

import agent2rl
from agent2rl.analysis import statistics
from agent2rl.core.agent import Agent, Brief, DrivenAgent
from agent2rl.core.errors import Agent2RLError, MachineError, UserError
from agent2rl.core.grading_records import (
    Contamination,
    ContaminationSummary,
    EvalResult,
    EvalScore,
    EvalSettings,
    HeldoutComparison,
    JudgeUsage,
    Split,
    Submission,
)
from agent2rl.core.llm import LlmUsage
from agent2rl.core.records import Asset, Ending, Isolation, Rollouts, RunResult, RunSpec, TimeBreakdown
from agent2rl.core.sandbox import Door, Enclosure, Sandbox
from agent2rl.core.task import Task
from agent2rl.grading.baseline import BaselineGrader
from agent2rl.grading.contamination_scan import ContaminationScan
from agent2rl.grading.grading_child import GradingChild, count_program_sandboxes
from agent2rl.grading.service import GradingService, GradingSetup
from agent2rl.grading.submission_grader import SubmissionGrader
from agent2rl.record.crash_recovery import AgentEnd, ResumeState
from agent2rl.record.paths import RunPaths
from agent2rl.record.recorder import Recorder
from agent2rl.run import machine, workspace
from agent2rl.run.agent_install import install_agent_package
from agent2rl.run.assets import Assets, load_assets
from agent2rl.run.driver_session import DriverSession
from agent2rl.run.settings import Settings, read_secrets

# What is known of a run so far. A result can be made of it at any point, and says no more than is known.


@dataclass
class RunOutcome:
    run_id: str
    spec: RunSpec
    started_at: float = field(default_factory=time.time)
    ending: Ending = "failed"
    reason: str = ""
    isolation: Isolation | None = None
    assets: tuple[Asset, ...] = ()
    baseline: EvalScore | None = None
    best: Submission | None = None
    baseline_heldout: EvalScore | None = None
    best_heldout: EvalScore | None = None
    ablated_heldout: EvalScore | None = None
    heldout: HeldoutComparison | None = None
    submissions: int = 0
    scored: int = 0
    clock: TimeBreakdown | None = None
    contamination: ContaminationSummary | None = None
    rollouts: Rollouts | None = None
    train_judge: JudgeUsage | None = None
    usage: LlmUsage | None = None
    judge_usage: LlmUsage | None = None
    rounds: int = 0
    resumed: int = 0
    dead_seconds: float = 0.0

    @classmethod
    def from_resume_state(cls, run_id: str, spec: RunSpec, past: ResumeState) -> Self:
        """With what another harness had found out before it died, where there was one."""
        known = cls(run_id, spec, resumed=past.resumed, dead_seconds=past.dead_seconds)
        known.started_at = past.opened_at or known.started_at
        known.baseline = past.baselines.get("feedback")
        known.count_submissions(past.submissions.values())
        return known

    def record_agent_end(self, over: AgentEnd, driving: DriverSession, service: GradingService) -> None:
        """The agent is gone and everything it submitted has its verdict."""
        self.ending, self.reason, self.rounds = over.ending, over.reason, over.rounds
        self.usage = driving.read_usage()
        self.best = service.find_best()
        self.count_submissions(service.list_submissions())
        self.clock = service.sum_clock(over.agent_seconds)

    def count_submissions(self, submissions: Collection[Submission]) -> None:
        self.submissions = len(submissions)
        self.scored = sum(submission.verdict == "scored" for submission in submissions)

    def mark_failed(self, reason: str) -> None:
        self.ending = "failed"
        self.reason = reason

    def make_result(self) -> RunResult:
        score, improvement, gap = None, None, None
        if self.best and self.spec.protocol == "paper":
            score = _subtract_ablation(self.best.score, self.baseline, self.best.ablated)
            improvement = self.best.improvement
        elif self.best and self.best_heldout and self.heldout and self.best.improvement is not None:
            score = _subtract_ablation(self.best_heldout, self.baseline_heldout, self.ablated_heldout)
            improvement = self.heldout.improvement
            gap = self.best.improvement - improvement
        return RunResult(
            run_id=self.run_id,
            spec=self.spec,
            ending=self.ending,
            reason=self.reason,
            started_at=self.started_at,
            ended_at=time.time(),
            isolation=self.isolation,
            assets=self.assets,
            baseline=self.baseline,
            best=self.best,
            baseline_heldout=self.baseline_heldout,
            best_heldout=self.best_heldout,
            ablated_heldout=self.ablated_heldout,
            heldout=self.heldout,
            optimism_gap=gap,
            score=score,
            improvement=improvement,
            submissions=self.submissions,
            scored=self.scored,
            clock=self.clock,
            contamination=self.contamination,
            rollouts=self.rollouts,
            train_judge=self.train_judge,
            usage=self.usage,
            judge_usage=self.judge_usage,
            rounds=self.rounds,
            resumed=self.resumed,
            dead_seconds=self.dead_seconds,
        )


def _subtract_ablation(
    score: EvalScore | None, baseline: EvalScore | None, ablated: EvalScore | None
) -> float | None:
    """A score without what the base model's own weights gain under the same chat format and tokens."""
    if score is None or baseline is None or ablated is None:
        return score.value if score else None
    return max(0.0, score.value - max(0.0, ablated.value - baseline.value))


def check_sandbox(sandbox: Sandbox, recorder: Recorder) -> Isolation:
    """Every promise is tried before anything untrusted starts."""
    recorder.record_event("phase", name="self-test")
    isolation = sandbox.check()
    recorder.record_entry("isolation", **isolation.model_dump(mode="json"))
    if isolation.broken:
        broken = isolation.broken[0]
        raise MachineError(f"The sandbox does not hold: {broken.name}.", broken.hint)
    return isolation


def prepare_assets(spec: RunSpec, task: Task, settings: Settings, recorder: Recorder) -> Assets:
    """The same as before, where the run is resumed: another model or other data would be another run."""
    recorder.record_event("phase", name="assets")
    assets = load_assets(
        spec, task, settings.cache, lambda text: recorder.record_event("preparing", text=text)
    )
    before = recorder.past.assets
    if not before:
        recorder.record_entry("assets", assets=[record.model_dump() for record in assets.records])
    elif changed := [old.name for old in before if old not in assets.records]:
        raise UserError(
            f"The run began with other inputs: {', '.join(changed)} changed since.",
            "Restore what it began with, then resume again; the ledger has the hashes.",
        )
    return assets


def install_agent(spec: RunSpec, agent: Agent, settings: Settings, recorder: Recorder) -> Path | None:
    """Where somebody else's program is; the first time it is wanted, it is installed."""
    if not isinstance(agent, DrivenAgent):
        return None
    name = spec.agent.partition(":")[0]
    prefix = install_agent_package(
        name, agent.package, settings.cache, lambda text: recorder.record_event("preparing", text=text)
    )
    recorder.record_entry("agent", name=name, package=agent.package.name, version=agent.package.version)
    return prefix


def prepare_workspace(
    spec: RunSpec, task: Task, sandbox: Sandbox, assets: Assets, settings: Settings, recorder: Recorder
) -> Brief:
    """An agent that has begun finds its workspace as it left it."""
    paths = recorder.paths
    seen_at = sandbox.workspace(paths.workspace)
    if recorder.past.started and not paths.workspace.is_dir():
        raise UserError(
            f"The workspace of {paths.run_id} is gone, and all that the agent made with it.",
            "Restore it from a copy, then resume again; or run the experiment anew.",
        )
    if not recorder.past.started:
        workspace.build_workspace(paths.workspace, seen_at, spec, task, assets)
    return workspace.make_brief(seen_at, spec, task, settings.gpus)


def make_grading_child(
    spec: RunSpec, task: Task, sandbox: Sandbox, assets: Assets, settings: Settings, recorder: Recorder
) -> GradingChild:
    before = recorder.past.limits
    limits = before or machine.resolve_limits(settings.runs, spec.limits)
    if before is None:
        recorder.record_entry("limits", **limits.model_dump())
    return GradingChild(
        sandbox=sandbox,
        task=spec.task,
        engine=spec.engine,
        settings=EvalSettings(seed=spec.seed, samples=spec.samples, temperature=spec.temperature),
        prompts=spec.prompts,
        splits=assets.splits,
        beside=assets.beside,
        limits=limits,
        seconds=spec.grading_seconds,
        code=task.code,
        programs=count_program_sandboxes(task),
        python_path=settings.python_path,
    )


def grade_baseline(
    baseline: BaselineGrader, split: Split, recorder: Recorder, stop: threading.Event
) -> tuple[EvalScore, EvalResult]:
    past, paths, where = recorder.past, recorder.paths, recorder.paths.baseline
    found, measured = (
        past.read_recorded_results(paths, where, split),
        past.find_measurement(paths, where, split),
    )
    if found and split in past.baselines:
        return past.baselines[split], found
    if found is None:
        recorder.record_event("phase", name="baseline", split=split)
        where.root.mkdir(parents=True, exist_ok=True)
        graded = baseline.grade_split(split, where.log, paths.scratch, stop, paths.run_id)
        if graded.warning:
            recorder.record_event("warning", text=graded.warning)
        found, measured = graded.results, graded.measured.model_dump()
        recorder.record_results(where, split, found, measured=measured)
    score = statistics.score_evaluation(found, split)
    source: dict[str, JsonValue] = {"cached": True}  # an older version did not note which run measured it
    if measured:
        source = {"cached": measured["run_id"] != paths.run_id, "measured_by": measured["run_id"]}
        source["measured_at"] = measured["at"]
    recorder.record_entry("baseline", split=split, score=score.model_dump(), **source)
    return score, found


def make_grading_setup(
    spec: RunSpec, brief: Brief, assets: Assets, baseline: EvalScore, child: GradingChild, settings: Settings
) -> GradingSetup:
    return GradingSetup(
        seen_at=brief.workspace,
        base=assets.base,
        base_seen_at=workspace.get_model_path(spec),
        baseline=baseline,
        child=child,
        gpus=machine.list_visible_gpus(settings.gpus),
    )


def read_agent_secrets(agent: Agent, recorder: Recorder) -> dict[str, str]:
    found = read_secrets(agent.secrets)
    for name in sorted(set(agent.secrets) - set(found)):
        recorder.record_event("warning", text=f"The agent asks for {name}, which is not set.")
    return found


def make_agent_enclosure(
    spec: RunSpec, child: GradingChild, assets: Assets, doors: tuple[Door, ...], paths: RunPaths
) -> Enclosure:
    return Enclosure(
        role="agent",
        workspace=paths.workspace,
        scratch=paths.agent_scratch,
        log=paths.agent_log,
        wall_seconds=spec.budget.wall_seconds,
        limits=child.limits,
        mounts=workspace.list_read_only_mounts(paths.workspace, spec, assets),
        hidden=_list_hidden_paths(spec),
        doors=doors,
    )


def _list_hidden_paths(spec: RunSpec) -> tuple[Path, ...]:
    """What of this package the agent must not read: evaluation data, and an expert that is withheld."""
    package = Path(agent2rl.__file__).parent
    experts = () if spec.expert else package.glob("environments/*/expert")
    return (package / "tasks", *experts)


def scan_for_contamination(
    outcome: RunOutcome, scan: ContaminationScan, recorder: Recorder, stop: threading.Event
) -> None:
    """Look through what the agent left. What goes wrong here costs this answer, never the run's result."""
    outcome.contamination = recorder.past.contamination
    if outcome.contamination:
        return
    recorder.record_event("phase", name="contamination")
    try:
        found = scan.run(recorder.paths.contamination_log, recorder.paths.scratch, stop)
    except Agent2RLError as error:
        found = Contamination(done=False, reason=str(error))
    except Exception as error:
        recorder.record_event("fault", where="contamination", trace=traceback.format_exc())
        found = Contamination(done=False, reason=f"A fault of agent2rl: {type(error).__name__}: {error}")
    recorder.record_contamination(found)
    outcome.contamination = found.summary


def grade_heldout(
    outcome: RunOutcome,
    baseline: BaselineGrader,
    grader: SubmissionGrader,
    recorder: Recorder,
    stop: threading.Event,
) -> None:
    """The held-out split is opened now, once: for the baseline and for the submission that feedback chose.

    Where that one differs in more than weights, the base model's own weights are graded under its other files
    too, and the gain is counted from whichever is higher.
    """
    best = outcome.best
    if best is None or outcome.spec.protocol != "heldout" or stop.is_set():
        return
    outcome.baseline_heldout, before = grade_baseline(baseline, "heldout", recorder, stop)
    where = recorder.paths.submission_paths(best.id)
    recorder.record_event("phase", name="held-out", submission=best.id)
    parts = grader.check(where)
    after = grader.grade(parts, where, "heldout")
    outcome.best_heldout = recorder.past.heldout or statistics.score_evaluation(after, "heldout")
    if parts.differs_beside_weights:
        ablated = grader.grade_ablations(parts, "heldout").results
        outcome.ablated_heldout = statistics.score_evaluation(ablated, "heldout")
        if outcome.ablated_heldout.value > outcome.baseline_heldout.value:
            before = ablated
    outcome.heldout = statistics.compare_evaluations(before, after)
    if recorder.past.heldout is None:
        recorder.record_entry("heldout", submission=best.id, score=outcome.best_heldout.model_dump())
