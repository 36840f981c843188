"""One run, as a straight line. A run whose harness died goes along the same line, past what is done."""

import resource
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent2rl import registry
from agent2rl.core.errors import Agent2RLError
from agent2rl.core.records import RunResult, RunSpec
from agent2rl.core.sandbox import Door
from agent2rl.grading.api import create_grading_app
from agent2rl.grading.baseline import BaselineGrader
from agent2rl.grading.contamination_scan import ContaminationScan
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService
from agent2rl.grading.worker import apply_prompts
from agent2rl.record.crash_recovery import read_spec, restore_result
from agent2rl.record.ledger import read_ledger as read_ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.recorder import Notify, Recorder
from agent2rl.record.run_lock import RunLock
from agent2rl.run import (
    agent_session,
    driver_session,
    grading_proxy_setup,
    run_steps,
    training_services,
    workspace,
)
from agent2rl.run.agent_observer import AgentObserver, RevisionWatcher
from agent2rl.run.private_places import PrivateSandbox, find_private_places
from agent2rl.run.run_steps import RunOutcome
from agent2rl.run.settings import Settings
from agent2rl.run.workspace import INSTRUCTIONS_VERSION


@dataclass(frozen=True)
class FinishedRun:
    result: RunResult
    paths: RunPaths
    ledger_head: str
    """The hash that pins the whole record, this result included."""


def start_run(spec: RunSpec, settings: Settings, notify: Notify, stop: threading.Event) -> FinishedRun:
    """From a specification to a result. Set `stop` to end it early with what there is."""
    return _execute_run(spec, settings, stop, lambda: Recorder.create(settings.runs, spec, notify))


def resume_run(paths: RunPaths, settings: Settings, notify: Notify, stop: threading.Event) -> FinishedRun:
    """Go on with a run whose harness died. One that is finished stays as it is.

    What keeps it from going on before it has begun to is raised, and leaves the run as it was.
    """
    with RunLock(paths.lock) as hold:
        if result := restore_result(paths):
            chain = read_ledger(paths.ledger, paths.ledger_head)
            return FinishedRun(result, paths, chain.entries[-1].hash if chain.entries else "")
        spec = read_spec(paths)
        return _execute_run(spec, settings, stop, lambda: Recorder.open(paths, notify, hold), again=True)


def _execute_run(
    spec: RunSpec,
    settings: Settings,
    stop: threading.Event,
    opened: Callable[[], Recorder],
    again: bool = False,
) -> FinishedRun:
    task = apply_prompts(registry.find_task(spec.task), spec.prompts)
    agent = registry.find_agent(spec.agent)
    places = find_private_places(settings, spec)
    sandbox = PrivateSandbox(registry.find_sandbox(spec.sandbox), places)
    registry.require_loader(spec.engine)
    ready = driver_session.DriverSetup(spec, agent, settings, again)
    _raise_file_limit()
    with (
        grading_proxy_setup.open_grading_proxy(
            grading_proxy_setup.GradingProxyOptions.from_spec(spec), task, settings
        ) as desk,
        opened() as recorder,
    ):
        paths, past = recorder.paths, recorder.past
        outcome = RunOutcome.from_resume_state(paths.run_id, spec, past)
        try:
            outcome.isolation = run_steps.check_sandbox(sandbox, recorder)
            assets = run_steps.prepare_assets(spec, task, settings, recorder)
            outcome.assets = assets.records
            sandbox = replace(sandbox, places=places.with_assets(assets))
            prefix = run_steps.install_agent(spec, agent, settings, recorder)
            brief = run_steps.prepare_workspace(spec, task, sandbox, assets, settings, recorder)
            child = run_steps.make_grading_child(spec, task, sandbox, assets, settings, recorder)
            child = replace(child, desk=desk.socket, offer=desk.offer)
            cache = settings.cache / "baselines" if desk.repeatable else None
            untouched = BaselineGrader(child, assets.base, task.evaluator.version, cache)
            outcome.baseline, _ = run_steps.grade_baseline(untouched, "feedback", recorder, stop)
            graded = run_steps.make_grading_setup(spec, brief, assets, outcome.baseline, child, settings)
            code, observer = RevisionWatcher(recorder, workspace.HARNESS_FILES), AgentObserver(recorder)
            service = GradingService(graded, spec.budget, recorder, stop, code.pin_submission)
            with (
                serve_on_socket(create_grading_app(service, task.id)) as socket,
                training_services.serve_world(task, paths, assets, service) as more,
                training_services.serve_training_judge(spec, settings, recorder) as teacher,
                ready.open_session(prefix, recorder, stop) as driver,
            ):
                again = False  # from here on the run goes on, whatever becomes of it
                doors = (Door("GRADING_SERVER_URL", socket), *more, *teacher.doors, *driver.doors)
                told = driver.add_driver_to_brief(training_services.add_rollout_key(task, brief, service))
                enclosure = replace(
                    run_steps.make_agent_enclosure(spec, child, assets, doors, paths), seen=observer
                )
                start = agent_session.AgentLauncher(
                    agent, sandbox, enclosure, run_steps.read_agent_secrets(agent, recorder), driver
                )
                with code.watch_workspace(start.list_agent_mounts(told)), observer.observe_agent():
                    service.catch_up()
                    over = past.over
                    if over is None:
                        deadline = service.start()
                        recorder.record_start(deadline, INSTRUCTIONS_VERSION)
                        workspace.write_run_meta(paths.workspace, spec, task, service.started_at)
                        over = agent_session.run_agent_rounds(start, told, service, recorder, spec.continues)
                    service.finish_gradings()
            outcome.train_judge = teacher.use()
            outcome.rollouts = service.meter.close() if task.world else None
            outcome.record_agent_end(over, driver, service)
            agent_session.save_self_reports(agent, enclosure.scratch / "home", recorder)
            given = workspace.list_given_texts(task, brief, assets)
            run_steps.scan_for_contamination(
                outcome, ContaminationScan(child, paths.workspace, given), recorder, stop
            )
            run_steps.grade_heldout(outcome, untouched, service.grader, recorder, stop)
        except Agent2RLError as error:
            if again and not stop.is_set():
                raise
            outcome.mark_failed(str(error))
        except Exception as error:
            recorder.record_event("fault", where="run", trace=traceback.format_exc())
            if again:
                raise
            outcome.mark_failed(f"A fault of agent2rl or of a plugin: {type(error).__name__}: {error}")
        if stop.is_set():
            outcome.ending = "interrupted"
        outcome.judge_usage = desk.judged() if desk.judged and not past.resumed else None
        result = outcome.make_result()
        recorder.close(result)
    return FinishedRun(result, paths, recorder.ledger_head)


def _raise_file_limit() -> None:
    """As many open files as the user may have: the agent decides how many connections there are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
