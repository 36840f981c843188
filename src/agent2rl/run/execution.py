"""Execute a run from its specification to its result: prepare, run the agent, finish.

A resumed run takes the same path. Each step skips what the record already has.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from agent2rl import registry
from agent2rl.core.agent import Agent, Brief, ModelCheckingAgent
from agent2rl.core.errors import Agent2RLError, explain_full_disk
from agent2rl.core.records import RunResult, RunSpec
from agent2rl.core.sandbox import AUTO_SANDBOX, ServiceSocket
from agent2rl.core.task import Task
from agent2rl.grading.agent_clock import AgentClock
from agent2rl.grading.api import create_grading_app
from agent2rl.grading.baseline import BaselineGrader
from agent2rl.grading.contamination_scan import ContaminationScan
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService
from agent2rl.record.crash_recovery import AgentEnd, read_spec, restore_result
from agent2rl.record.ledger import read_ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.recorder import Notify, Recorder
from agent2rl.record.run_lock import RunLock
from agent2rl.run import agent_session, driver_session, run_steps, training_services, workspace
from agent2rl.run.agent_network import AgentNetwork, NetworkSetup
from agent2rl.run.agent_observer import AgentObserver, RevisionWatcher
from agent2rl.run.agent_python import AgentPython
from agent2rl.run.assets import Assets
from agent2rl.run.driver_session import DriverSession
from agent2rl.run.grading_proxy_setup import GradingProxyOptions, OpenedGradingProxy, open_grading_proxy
from agent2rl.run.private_places import PrivateSandbox
from agent2rl.run.recorded_code import CodeReproduction
from agent2rl.run.regression_panel import RegressionPanelGrader
from agent2rl.run.run_outcome import RunOutcome
from agent2rl.run.settings import Settings
from agent2rl.run.workspace import INSTRUCTIONS_VERSION
from agent2rl.system.unix import resource

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedRun:
    result: RunResult
    paths: RunPaths
    ledger_head: str
    """The hash that pins the whole record, including this result."""


def start_run(
    spec: RunSpec,
    settings: Settings,
    notify: Notify,
    stop: threading.Event,
    reproduction: CodeReproduction | None = None,
) -> FinishedRun:
    """Execute a new run. Set `stop` to end it early with the results so far.

    With `reproduction`, recorded code runs in place of the agent.
    """
    profile = registry.find_profile(spec.task, spec.protocol)
    spec = spec.model_copy(update={"instructions_version": INSTRUCTIONS_VERSION, "profile": profile})
    return _execute_run(
        spec, settings, stop, lambda: Recorder.create(settings.runs, spec, notify), reproduction=reproduction
    )


def resume_run(paths: RunPaths, settings: Settings, notify: Notify, stop: threading.Event) -> FinishedRun:
    """Resume a run after its harness crashed. A finished run is returned unchanged.

    Errors before the agent's services are up are raised and leave the run as it was.
    """
    with RunLock(paths.lock) as lock:
        if result := restore_result(paths):
            chain = read_ledger(paths.ledger, paths.ledger_head)
            return FinishedRun(result, paths, chain.entries[-1].hash if chain.entries else "")
        spec = read_spec(paths)
        return _execute_run(spec, settings, stop, lambda: Recorder.open(paths, notify, lock), resuming=True)


def _execute_run(
    spec: RunSpec,
    settings: Settings,
    stop: threading.Event,
    open_recorder: Callable[[], Recorder],
    resuming: bool = False,
    reproduction: CodeReproduction | None = None,
) -> FinishedRun:
    task = registry.find_task(spec.task).apply_profile(spec.profile).apply_prompts(spec.prompts)
    agent = reproduction.agent if reproduction else registry.find_agent(spec.agent)
    # An unknown name must fail before there is a run directory.
    if spec.sandbox != AUTO_SANDBOX:
        registry.find_sandbox(spec.sandbox)
    registry.require_loader(spec.engine)
    run_steps.require_gpus(spec, settings)
    if isinstance(agent, ModelCheckingAgent):
        agent.require_model(spec.model, spec.engine)
    driver_setup = driver_session.DriverSetup(spec, agent, settings, resuming)
    network_setup = NetworkSetup(spec, settings)
    _raise_file_limit()
    with (
        open_grading_proxy(GradingProxyOptions.from_spec(spec), task, settings) as grading_proxy,
        open_recorder() as recorder,
    ):
        outcome = RunOutcome.from_resume_state(recorder.paths.run_id, spec, recorder.resume_state)
        run = _ActiveRun(
            spec,
            task,
            agent,
            settings,
            stop,
            recorder,
            outcome,
            driver_setup,
            network_setup,
            grading_proxy,
            leave_open_on_error=resuming,
            reproduction=reproduction,
        )
        try:
            prepared = _prepare_run(run)
            service = _run_agent(run, prepared)
            _finish_run(run, prepared, service)
        except Agent2RLError as error:
            if run.leave_open_on_error and not stop.is_set():
                raise
            outcome.mark_failed(str(error))
        except Exception as error:
            recorder.record_event("fault", where="run", trace=traceback.format_exc())
            if run.leave_open_on_error:
                raise
            internal = f"Internal error of agent2rl or a plugin: {type(error).__name__}: {error}"
            outcome.mark_failed(str(explain_full_disk(error) or internal))
        if stop.is_set():
            outcome.ending = "interrupted"
        if spec.keep == "none":
            run_steps.drop_all_copies(outcome, recorder)
        # What was asked before a crash is not known, and a part would look like the whole.
        if grading_proxy.read_judge_usage and not recorder.resume_state.resumed:
            outcome.judge_usage = grading_proxy.read_judge_usage()
        result = outcome.make_result()
        recorder.close(result)
    return FinishedRun(result, recorder.paths, recorder.ledger_head)


@dataclass
class _ActiveRun:
    """What all stages of a run share."""

    spec: RunSpec
    task: Task
    agent: Agent
    settings: Settings
    stop: threading.Event
    recorder: Recorder
    outcome: RunOutcome
    driver_setup: driver_session.DriverSetup
    network_setup: NetworkSetup
    grading_proxy: OpenedGradingProxy
    leave_open_on_error: bool
    """Whether an error leaves the run open, to be resumed again, instead of closing it as failed."""
    reproduction: CodeReproduction | None = None
    """The recorded code that runs in place of the agent, if it does."""


@dataclass(frozen=True)
class _PreparedRun:
    """What the preparation of a run yields."""

    sandbox: PrivateSandbox
    assets: Assets
    python: AgentPython
    agent_package: Path | None
    brief: Brief
    grading_child: GradingChild
    baseline_grader: BaselineGrader


def _prepare_run(run: _ActiveRun) -> _PreparedRun:
    """Do everything that comes before the agent's time: self-test, inputs, workspace, baseline."""
    spec, task, settings, recorder = run.spec, run.task, run.settings, run.recorder
    sandbox, run.outcome.isolation = run_steps.prepare_sandbox(spec, settings, recorder)
    if run.reproduction:
        run.reproduction.require_isolation(run.outcome.isolation)
        sandbox = replace(sandbox, places=sandbox.places.with_records(run.reproduction.hidden))
    python = run_steps.prepare_python(spec, sandbox, recorder)
    assets = run_steps.prepare_assets(spec, task, sandbox, settings, recorder)
    run.outcome.assets = assets.records
    if run.reproduction:
        run.reproduction.require_same_assets(assets.records)
    sandbox = replace(sandbox, places=sandbox.places.with_assets(assets))
    agent_package = run_steps.install_agent(spec, run.agent, settings, recorder)
    brief = run_steps.prepare_workspace(spec, task, sandbox, assets, python, settings, recorder)
    child = run_steps.make_grading_child(spec, task, sandbox, assets, settings, recorder)
    child = replace(
        child, proxy_socket=run.grading_proxy.socket, proxy_description=run.grading_proxy.description
    )
    baseline_cache = settings.cache / "baselines" if run.grading_proxy.repeatable else None
    baseline_grader = BaselineGrader(child, assets.base, task.evaluator.version, baseline_cache)
    run.outcome.baseline, _ = run_steps.grade_baseline(baseline_grader, "feedback", recorder, run.stop)
    return _PreparedRun(sandbox, assets, python, agent_package, brief, child, baseline_grader)


def _run_agent(run: _ActiveRun, prepared: _PreparedRun) -> GradingService:
    """Serve what the agent may call, run it, and wait until all submissions have a verdict."""
    spec, task, recorder, assets = run.spec, run.task, run.recorder, prepared.assets
    assert run.outcome.baseline is not None
    grading_setup = run_steps.make_grading_setup(
        spec, prepared.brief, assets, run.outcome.baseline, prepared.grading_child, run.settings
    )
    package_overlay = run_steps.prepare_package_overlay(
        spec, prepared.python, prepared.sandbox, run.settings, recorder
    )
    revisions = RevisionWatcher(recorder, workspace.HARNESS_FILES)
    agent_gpus = len(run_steps.assign_gpus(spec, run.settings).agent)
    service = GradingService(
        grading_setup,
        spec.budget,
        recorder,
        run.stop,
        on_accept=revisions.pin_submission,
        on_submit=lambda service: _update_run_meta(run, service),
        clock=AgentClock(spec.budget, spec.clock, agent_gpus, recorder.resume_state),
        keep="all" if run.reproduction else spec.keep,  # which one counts is known at the end
    )
    with (
        serve_on_socket(create_grading_app(service, task.id, task.world is not None)) as grading_socket,
        training_services.serve_world(task, recorder.paths, assets, service) as world_sockets,
        training_services.serve_training_judge(spec, run.settings, recorder) as training_judge,
        run.network_setup.open_network(package_overlay, recorder) as network,
        run.driver_setup.open_session(prepared.agent_package, recorder, run.stop) as driver,
    ):
        run.leave_open_on_error = (
            False  # the agent may work from here on, so every error is an outcome of the run
        )
        grading_api = ServiceSocket("GRADING_SERVER_URL", grading_socket)
        services = (*world_sockets, *training_judge.sockets, *network.sockets, *driver.sockets)
        sockets = (grading_api, *services)
        logger.debug("The agent gets: %s", ", ".join(socket.variable for socket in sockets))
        agent_end = _run_agent_with_sockets(run, prepared, service, driver, revisions, network, sockets)
    run.outcome.train_judge = training_judge.read_usage()
    run.outcome.network = run.network_setup.usage
    run.outcome.rollouts = service.meter.close_and_sum_totals() if task.world else None
    run.outcome.record_agent_end(agent_end, driver, service)
    if run.reproduction:
        run.outcome.best = run.reproduction.choose(service.list_submissions(), prepared.brief.workspace)
    return service


def _run_agent_with_sockets(
    run: _ActiveRun,
    prepared: _PreparedRun,
    service: GradingService,
    driver: DriverSession,
    revisions: RevisionWatcher,
    network: AgentNetwork,
    sockets: tuple[ServiceSocket, ...],
) -> AgentEnd:
    """Run the agent while its processes and its code are watched, then grade what is still queued."""
    recorder, paths, observer = run.recorder, run.recorder.paths, AgentObserver(run.recorder)
    enclosure = run_steps.make_agent_enclosure(
        run.spec,
        prepared.grading_child,
        prepared.assets,
        network.package_overlay or prepared.python,
        sockets,
        paths,
        run_steps.assign_gpus(run.spec, run.settings).agent,
    )
    if run.spec.clock == "training":
        enclosure = replace(enclosure, remaining_seconds=service.remaining_seconds)
    secrets = run_steps.read_agent_secrets(run.agent, recorder)
    launcher = agent_session.AgentLauncher(
        run.agent, prepared.sandbox, replace(enclosure, process_observer=observer), secrets, driver
    )
    brief = training_services.add_rollout_report_key(run.task, prepared.brief, service)
    brief = driver.add_driver_to_brief(network.add_to_brief(brief))
    with revisions.watch_workspace(launcher.list_agent_mounts(brief)), observer.observe_agent():
        # Before the agent's clock continues, so that it does not pay for what a crash left
        # ungraded.
        service.grade_leftover_submissions()
        agent_end = recorder.resume_state.agent_end
        if agent_end is None:
            deadline = service.start()
            recorder.record_start(deadline, INSTRUCTIONS_VERSION, service.clock.gpus)
            times = _read_run_times(service)
            workspace.write_first_run_meta(paths.workspace, run.spec, run.task, times)
            logger.info("Agent %r starts with %.0f s left", run.spec.agent, deadline - time.time())
            agent_end = agent_session.run_agent_rounds(launcher, brief, service, recorder, run.spec.continues)
            logger.info("The agent ended after %.1f s: %s", agent_end.agent_seconds, agent_end.ending)
        service.finish_gradings()
        if recorder.resume_state.agent_end is None:  # else its clock is not known any more
            _update_run_meta(run, service)
    return agent_end


def _update_run_meta(run: _ActiveRun, service: GradingService) -> None:
    paths = run.recorder.paths
    if not workspace.write_run_meta(paths.workspace, run.spec, run.task, _read_run_times(service)):
        logger.debug("run_meta.json was not updated")


def _read_run_times(service: GradingService) -> workspace.RunTimes:
    return workspace.RunTimes(
        service.started_at,
        service.last_submit_at,
        service.ended_at,
        service.clock.wall_seconds(),
        service.clock.training_seconds(),
        service.clock.gpu_seconds(),
    )


def _finish_run(run: _ActiveRun, prepared: _PreparedRun, service: GradingService) -> None:
    """Do everything that comes after the agent's time: its self-reports, contamination, held-out grading."""
    recorder, paths = run.recorder, run.recorder.paths
    agent_session.save_self_reports(run.agent, paths.agent_scratch / "home", recorder)
    given_texts = workspace.list_given_texts(run.task, prepared.brief, prepared.assets)
    scan = ContaminationScan(prepared.grading_child, paths.workspace, given_texts)
    run_steps.scan_for_contamination(run.outcome, scan, recorder, run.stop)
    if run.reproduction and not run.reproduction.heldout:
        return
    run_steps.grade_heldout(run.outcome, prepared.baseline_grader, service.grader, recorder, run.stop)
    regression_panel = RegressionPanelGrader(
        prepared.baseline_grader, run.settings.cache / "baselines", service.grader, recorder, run.stop
    )
    regression_panel.grade_tasks(run.outcome, prepared.assets.regression_panel)


def _raise_file_limit() -> None:
    """Allow as many open files as possible, because the agent decides how many connections there are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
