"""The steps of a run, each noted on its record. What the record has already is not done a second time."""

import threading
import traceback
from pathlib import Path

from pydantic import JsonValue

import agent2rl
from agent2rl.analysis import statistics
from agent2rl.core.agent import Agent, Brief, DrivenAgent
from agent2rl.core.errors import Agent2RLError, MachineError, UserError
from agent2rl.core.records import (
    Contamination,
    EvalResult,
    EvalScore,
    EvalSettings,
    Isolation,
    RunSpec,
    Split,
)
from agent2rl.core.sandbox import Door, Enclosure, Sandbox
from agent2rl.core.task import Task
from agent2rl.grading.baseline import BaselineGrader
from agent2rl.grading.contamination_scan import ContaminationScan
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.program_sandboxes import count_program_sandboxes
from agent2rl.grading.service import GradingSetup
from agent2rl.grading.submission_grader import SubmissionGrader
from agent2rl.runner import machine, workspace
from agent2rl.runner.agent_install import install_agent_package
from agent2rl.runner.assets import Assets, load_assets
from agent2rl.runner.run_outcome import RunOutcome
from agent2rl.runner.settings import Settings, read_secrets
from agent2rl.store.paths import RunPaths
from agent2rl.store.recorder import Recorder


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
