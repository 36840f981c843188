"""The steps of a run, and the outcome that they fill in.

Each step is recorded. A step that is already recorded is not done again.
"""

import logging
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pydantic import JsonValue

import agent2rl
from agent2rl.analysis import statistics
from agent2rl.core.agent import UNTOUCHED_AGENT, Agent, Brief, DrivenAgent, ProgramAgent
from agent2rl.core.errors import Agent2RLError, GradingError, MachineError, UserError
from agent2rl.core.grading_records import (
    Contamination,
    EvalResult,
    EvalScore,
    EvalSettings,
    Split,
    Submission,
)
from agent2rl.core.network import parse_network_policy
from agent2rl.core.records import Isolation, RunSpec
from agent2rl.core.sandbox import AUTO_SANDBOX, Enclosure, Sandbox, ServiceSocket
from agent2rl.core.task import Task
from agent2rl.grading.baseline import BaselineGrader
from agent2rl.grading.contamination_scan import ContaminationScan
from agent2rl.grading.grading_child import GradingChild, count_program_sandboxes
from agent2rl.grading.submission_grader import Ablation, SubmissionGrader
from agent2rl.grading.verdict_maker import GradingSetup
from agent2rl.record.paths import RunPaths, SubmissionPaths
from agent2rl.record.reader import read_run
from agent2rl.record.recorder import Recorder
from agent2rl.run import machine, model_preflight, workspace
from agent2rl.run.agent_install import install_agent_package
from agent2rl.run.agent_python import (
    AgentPython,
    find_agent_python,
    find_own_python,
    require_start_in_sandbox,
)
from agent2rl.run.assets import Assets, load_assets
from agent2rl.run.gpu_check import CUDA_HINT, find_gpu_failure
from agent2rl.run.package_overlay import DEBIAN_URL, PackageOverlay, can_use_apt
from agent2rl.run.private_places import PrivateSandbox, find_private_places
from agent2rl.run.run_outcome import RunOutcome
from agent2rl.run.sandbox_choice import choose_sandbox, try_sandbox
from agent2rl.run.settings import Settings, read_secrets

logger = logging.getLogger(__name__)

NO_GPU_HINT = (
    "Leave it out: the miniature tasks need no GPU. If this machine has one, `nvidia-smi` must list it, and "
    "CUDA_VISIBLE_DEVICES must not hide it."
)


def prepare_sandbox(
    spec: RunSpec, settings: Settings, recorder: Recorder
) -> tuple[PrivateSandbox, Isolation]:
    """Choose the sandbox, and test every promise of it before anything untrusted starts.

    A resumed run keeps the sandbox that was chosen for it.
    """
    recorder.record_event("phase", name="self-test")
    begin = time.monotonic()
    places, earlier = find_private_places(settings, spec), recorder.resume_state.isolation
    if spec.sandbox != AUTO_SANDBOX:
        tried = try_sandbox(spec.sandbox, places)
    elif earlier:
        tried = try_sandbox(earlier.sandbox, places, earlier.reason, earlier.remedy)
    else:
        tried = choose_sandbox(places)
    isolation = tried.isolation
    recorder.record_entry("isolation", **isolation.model_dump(mode="json"))
    if isolation.broken:
        broken = isolation.broken[0]
        raise MachineError(f"The sandbox failed its self-test ({broken.name!r} does not hold).", broken.hint)
    logger.info("Sandbox %s: self-test passed in %.1f s", isolation.sandbox, time.monotonic() - begin)
    if failure := find_gpu_failure(tried.sandbox, assign_gpus(spec, settings).agent):
        text = f"CUDA does not start in the sandbox {isolation.sandbox} ({failure}). Training uses the CPU."
        recorder.record_event("warning", text=f"{text} {CUDA_HINT}")
    return tried.sandbox, isolation


def prepare_python(spec: RunSpec, sandbox: Sandbox, recorder: Recorder) -> AgentPython:
    """Return the agent's Python environment. A resumed run must have the same packages as before."""
    if recorder.resume_state.agent_end:  # the agent is not started again
        return find_own_python()
    if spec.agent_python is None:
        python = find_own_python()
    else:
        python = find_agent_python(Path(spec.agent_python))
        if python.lock.sha256 != spec.agent_python_lock:
            raise UserError(
                f"The packages of the agent's Python {spec.agent_python} have changed.",
                "Restore them: the ledger has the list. Or start a new run.",
            )
        require_start_in_sandbox(python, sandbox)
    recorder.record_entry("python", lock=python.lock.model_dump(mode="json"))
    logger.debug("The agent's Python is in %s and has %d packages", python.prefix, len(python.lock.packages))
    return python


def prepare_package_overlay(
    spec: RunSpec, python: AgentPython, sandbox: Sandbox, settings: Settings, recorder: Recorder
) -> PackageOverlay | None:
    """Return the environment that the agent installs packages into; None if it has no network."""
    if spec.network == "none":
        return None
    paths = recorder.paths
    seen_at = sandbox.workspace(paths.workspace)
    same_paths = seen_at == PurePosixPath(paths.workspace.resolve())
    overlay = PackageOverlay.place_in(paths.agent_scratch, python, same_paths)
    mirrors = settings.mirrors if parse_network_policy(spec.network).includes_packages else {}
    debian = mirrors.get("debian", (DEBIAN_URL,))[0]
    overlay.build(debian if can_use_apt(spec.sandbox) else None)
    return overlay


def prepare_assets(
    spec: RunSpec, task: Task, sandbox: Sandbox, settings: Settings, recorder: Recorder
) -> Assets:
    """Load the run's inputs. A resumed run must have the same inputs as before, or it is another run."""
    recorder.record_event("phase", name="assets")

    def check_model(directory: Path) -> None:
        gpus = assign_gpus(spec, settings).grading
        copies = model_preflight.CopyPlan(spec.keep, spec.budget.submissions)
        findings = model_preflight.check_model(
            directory, settings.runs, spec.sandbox, spec.engine, gpus, copies
        )
        model_preflight.require_model_fits(findings, lambda text: recorder.record_event("warning", text=text))

    assets = load_assets(
        spec,
        task,
        settings.cache,
        sandbox,
        lambda text: recorder.record_event("preparing", text=text),
        check_model,
    )
    recorded = recorder.resume_state.assets
    if not recorded:
        recorder.record_entry("assets", assets=[record.model_dump() for record in assets.records])
        return assets
    known = {asset.name for asset in recorded}
    assets = replace(  # a fingerprint that came into the cache since is not for this run
        assets, siblings=tuple(each for each in assets.siblings if each.asset_name in known)
    )
    if changed := [asset.name for asset in recorded if asset not in assets.records]:
        raise UserError(
            f"These inputs changed since the run began: {', '.join(changed)}.",
            "Restore the original inputs, then resume again. The ledger has their hashes.",
        )
    return assets


def install_agent(spec: RunSpec, agent: Agent, settings: Settings, recorder: Recorder) -> Path | None:
    """Return the directory of the agent's package, and install it on first use."""
    if not isinstance(agent, DrivenAgent):
        return None
    shared = agent.installed_as if isinstance(agent, ProgramAgent) else ""
    name = shared or spec.agent.partition(":")[0]
    prefix = install_agent_package(
        name, agent.package, settings.cache, lambda text: recorder.record_event("preparing", text=text)
    )
    recorder.record_entry("agent", name=name, package=agent.package.name, version=agent.package.version)
    logger.info("Agent %s: %s %s", name, agent.package.name, agent.package.version)
    return prefix


def prepare_workspace(
    spec: RunSpec,
    task: Task,
    sandbox: Sandbox,
    assets: Assets,
    python: AgentPython,
    settings: Settings,
    recorder: Recorder,
) -> Brief:
    """Build the workspace, unless the agent has begun: then it stays as the agent left it."""
    paths = recorder.paths
    seen_at = sandbox.workspace(paths.workspace)
    if recorder.resume_state.started and not paths.workspace.is_dir():
        raise UserError(
            f"The workspace of {paths.run_id} is missing, with all files of the agent.",
            "Restore it from a copy, then resume again, or start a new run.",
        )
    if not recorder.resume_state.started:
        workspace.build_workspace(paths.workspace, seen_at, spec, task, assets, python)
        logger.debug("Built the workspace %s, which the agent sees at %s", paths.workspace, seen_at)
    # Unless the user chose, the variable stays unset, and programs find all GPUs by themselves.
    explicit = settings.gpus is not None or spec.grading_gpus is not None
    gpus = assign_gpus(spec, settings).agent if explicit else None
    return workspace.make_brief(seen_at, spec, task, gpus, python)


def make_grading_child(
    spec: RunSpec, task: Task, sandbox: Sandbox, assets: Assets, settings: Settings, recorder: Recorder
) -> GradingChild:
    recorded = recorder.resume_state.limits
    limits = recorded or machine.resolve_limits(settings.runs, spec.limits)
    if recorded is None:
        recorder.record_entry("limits", **limits.model_dump())
    gpus = assign_gpus(spec, settings).grading
    return GradingChild(
        sandbox=sandbox,
        task=spec.task,
        engine=spec.engine,
        settings=EvalSettings(seed=spec.seed, samples=spec.samples, temperature=spec.temperature),
        prompts=spec.prompts,
        profile=spec.profile,
        splits=assets.splits,
        evaluator_folders=assets.evaluator_folders,
        limits=limits,
        seconds=spec.grading_seconds,
        gpu=gpus[0] if gpus else None,
        gpus=gpus,
        code=task.code,
        programs=count_program_sandboxes(task),
        python_path=settings.python_path,
    )


def grade_baseline(
    baseline: BaselineGrader, split: Split, recorder: Recorder, stop: threading.Event
) -> tuple[EvalScore, EvalResult]:
    """Return the untouched model's score and results on a split: recorded, cached or measured now."""
    resume_state, paths, where = recorder.resume_state, recorder.paths, recorder.paths.baseline
    begin = time.monotonic()
    results = resume_state.read_recorded_results(paths, where, split)
    measured = resume_state.find_measurement(paths, where, split)
    if results and split in resume_state.baselines:
        logger.info("Baseline (%s): %.2f, recorded before", split, resume_state.baselines[split].value)
        return resume_state.baselines[split], results
    if results is None:
        recorder.record_event("phase", name="baseline", split=split)
        where.root.mkdir(parents=True, exist_ok=True)
        graded = baseline.grade_split(split, where.log, paths.scratch, stop, paths.run_id)
        if graded.warning:
            recorder.record_event("warning", text=graded.warning)
        results, measured = graded.results, graded.measured.model_dump()
        recorder.record_results(where, split, results, measured=measured)
    score = statistics.score_evaluation(results, split)
    source: dict[str, JsonValue] = {"cached": True}  # older versions did not record which run measured it
    if measured:
        source = {"cached": measured["run_id"] != paths.run_id, "measured_by": measured["run_id"]}
        source["measured_at"] = measured["at"]
    recorder.record_entry("baseline", split=split, score=score.model_dump(), **source)
    origin = "from the cache" if source["cached"] else f"graded in {time.monotonic() - begin:.1f} s"
    logger.info("Baseline (%s): %.2f, %s", split, score.value, origin)
    return score, results


def assign_gpus(spec: RunSpec, settings: Settings) -> machine.GpuAssignment:
    return machine.assign_gpus(machine.list_visible_gpus(settings.gpus), spec.grading_gpus)


def require_gpus(spec: RunSpec, settings: Settings) -> None:
    """Raise UserError if the run lacks the GPUs for grading, or a GPU whose time is limited."""
    gpus = assign_gpus(spec, settings)
    if spec.budget.gpu_seconds is not None and not gpus.agent:
        raise UserError(
            "--max-gpu-hours limits GPU time, but this run has no GPU.",
            NO_GPU_HINT,
        )


def make_grading_setup(
    spec: RunSpec, brief: Brief, assets: Assets, baseline: EvalScore, child: GradingChild, settings: Settings
) -> GradingSetup:
    return GradingSetup(
        seen_at=brief.workspace,
        base=assets.base,
        base_seen_at=workspace.get_model_path(spec),
        baseline=baseline,
        child=child,
        gpus=assign_gpus(spec, settings).grading,
        siblings=assets.siblings,
    )


def read_agent_secrets(agent: Agent, recorder: Recorder) -> dict[str, str]:
    secrets = read_secrets(agent.secrets)
    for name in sorted(set(agent.secrets) - set(secrets)):
        recorder.record_event(
            "warning", text=f"The agent needs the environment variable {name}, which is not set."
        )
    return secrets


def make_agent_enclosure(
    spec: RunSpec,
    child: GradingChild,
    assets: Assets,
    python: AgentPython | PackageOverlay,
    sockets: tuple[ServiceSocket, ...],
    paths: RunPaths,
    gpus: tuple[str, ...] | None = None,
) -> Enclosure:
    return Enclosure(
        role="agent",
        workspace=paths.workspace,
        scratch=paths.agent_scratch,
        log=paths.agent_log,
        wall_seconds=spec.budget.wall_seconds,
        limits=child.limits,
        mounts=(
            *workspace.list_read_only_mounts(paths.workspace, spec, assets),
            *python.list_mounts(),
        ),
        hidden=_list_hidden_paths(spec, python.base if isinstance(python, PackageOverlay) else python),
        sockets=sockets,
        python=python.make_sandbox_python(),
        gpus=gpus,
    )


def _list_hidden_paths(spec: RunSpec, python: AgentPython) -> tuple[Path, ...]:
    """Return what the agent must not read in this package, and in the copies of it that its Python has:
    evaluation data and a withheld expert."""
    packages = (Path(agent2rl.__file__).parent, *python.list_agent2rl_copies())
    experts = [path for package in packages for path in package.glob("environments/*/expert")]
    return (*(package / "tasks" for package in packages), *(() if spec.expert == "full" else experts))


def scan_for_contamination(
    outcome: RunOutcome, scan: ContaminationScan, recorder: Recorder, stop: threading.Event
) -> None:
    """Search the agent's files for evaluation data. A failure here never costs the run's result."""
    outcome.contamination = recorder.resume_state.contamination
    if outcome.contamination:
        return
    recorder.record_event("phase", name="contamination")
    begin = time.monotonic()
    try:
        contamination = scan.run(recorder.paths.contamination_log, recorder.paths.scratch, stop)
    except Agent2RLError as error:
        contamination = Contamination(done=False, reason=str(error))
    except Exception as error:
        recorder.record_event("fault", where="contamination", trace=traceback.format_exc())
        reason = f"Internal error of agent2rl: {type(error).__name__}: {error}"
        contamination = Contamination(done=False, reason=reason)
    recorder.record_contamination(contamination)
    logger.info("Searched the agent's files for evaluation data in %.1f s", time.monotonic() - begin)
    outcome.contamination = contamination.summary


def grade_heldout(
    outcome: RunOutcome,
    baseline: BaselineGrader,
    grader: SubmissionGrader,
    recorder: Recorder,
    stop: threading.Event,
) -> None:
    """Grade the baseline and the best submission on the held-out split, which is opened only here.

    If the submission differs in more than weights, the base model's own weights are also graded with its
    other files, and the improvement is measured from the higher score. A run without a submission grades
    neither, but for the agent that does nothing: its runs are there to measure the baseline.
    """
    best = outcome.best
    measures = best is not None or outcome.spec.agent == UNTOUCHED_AGENT
    if not measures or outcome.spec.protocol == "paper" or stop.is_set():
        return
    outcome.baseline_heldout, reference = grade_baseline(baseline, "heldout", recorder, stop)
    if best is None:
        return
    recorder.record_event("phase", name="held-out", submission=best.id)
    begin = time.monotonic()
    results, ablated = _grade_best_heldout(best, grader, recorder)
    outcome.best_heldout = recorder.resume_state.heldout or statistics.score_evaluation(results, "heldout")
    if ablated:
        outcome.ablated_heldout = statistics.score_evaluation(ablated.results, "heldout")
        if outcome.ablated_heldout.value > outcome.baseline_heldout.value:
            reference = ablated.results
    outcome.heldout = statistics.compare_evaluations(reference, results)
    if recorder.resume_state.heldout is None:
        recorder.record_entry(
            "heldout",
            submission=best.id,
            score=outcome.best_heldout.model_dump(),
            ablation=ablated.key if ablated else None,
        )
    seconds = time.monotonic() - begin
    logger.info("Submission %d (held-out): %.2f after %.1f s", best.id, outcome.best_heldout.value, seconds)


def _grade_best_heldout(
    best: Submission, grader: SubmissionGrader, recorder: Recorder
) -> tuple[EvalResult, Ablation | None]:
    """Return the results of the best submission and, if it differs in more than weights, of its ablation."""
    where = recorder.paths.submission_paths(best.id)
    if not best.kept:  # the run was resumed after the last copies were dropped
        return _read_best_heldout(where, recorder)
    parts = grader.check(where)
    results = grader.grade(parts, where, "heldout")
    return results, grader.grade_ablations(parts, "heldout") if parts.differs_beside_weights else None


def _read_best_heldout(where: SubmissionPaths, recorder: Recorder) -> tuple[EvalResult, Ablation | None]:
    paths, resume_state = recorder.paths, recorder.resume_state
    results = resume_state.read_recorded_results(paths, where, "heldout")
    key = resume_state.heldout_ablation
    ablated = resume_state.read_recorded_results(paths, paths.ablation_paths(key), "heldout") if key else None
    if results is None or resume_state.heldout is None or (key and ablated is None):
        raise GradingError(
            f"The weights of submission {where.root.name} were not kept, and it has no held-out score.",
            "The record has its feedback score.",
        )
    return results, Ablation(key, ablated) if key and ablated else None


def drop_all_copies(outcome: RunOutcome, recorder: Recorder) -> None:
    """Delete the weights that the run kept for its own use."""
    for submission in read_run(recorder.paths).submissions:
        if submission.kept:
            recorder.drop_copy(submission)
    if outcome.best:
        outcome.best = outcome.best.model_copy(update={"kept": False})
