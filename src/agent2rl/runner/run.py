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
from agent2rl.grading.api import application
from agent2rl.grading.baseline import Baseline
from agent2rl.grading.scan import Scan
from agent2rl.grading.server import serve
from agent2rl.grading.service import Service
from agent2rl.grading.worker import prompted
from agent2rl.runner import accounts, desks, driving, rounds, steps, training_judge, workspace, worlds
from agent2rl.runner.brief import INSTRUCTIONS_VERSION
from agent2rl.runner.observing import Observer
from agent2rl.runner.outcome import Outcome
from agent2rl.runner.private_places import PrivateSandbox, find_private_places
from agent2rl.runner.recording import Recording
from agent2rl.runner.settings import Settings
from agent2rl.store.hold import Hold
from agent2rl.store.ledger import read as read_ledger
from agent2rl.store.mending import finished, read_spec
from agent2rl.store.paths import RunPaths
from agent2rl.store.recorder import Notify, Recorder


@dataclass(frozen=True)
class Finished:
    result: RunResult
    paths: RunPaths
    ledger_head: str
    """The hash that pins the whole record, this result included."""


def run(spec: RunSpec, settings: Settings, notify: Notify, stop: threading.Event) -> Finished:
    """From a specification to a result. Set `stop` to end it early with what there is."""
    return _go(spec, settings, stop, lambda: Recorder.create(settings.runs, spec, notify))


def resume(paths: RunPaths, settings: Settings, notify: Notify, stop: threading.Event) -> Finished:
    """Go on with a run whose harness died. One that is finished stays as it is.

    What keeps it from going on before it has begun to is raised, and leaves the run as it was.
    """
    with Hold(paths.lock) as hold:
        if result := finished(paths):
            chain = read_ledger(paths.ledger, paths.ledger_head)
            return Finished(result, paths, chain.entries[-1].hash if chain.entries else "")
        spec = read_spec(paths)
        return _go(spec, settings, stop, lambda: Recorder.open(paths, notify, hold), again=True)


def _go(
    spec: RunSpec,
    settings: Settings,
    stop: threading.Event,
    opened: Callable[[], Recorder],
    again: bool = False,
) -> Finished:
    task = prompted(registry.task(spec.task), spec.prompts)
    agent = registry.agent(spec.agent)
    places = find_private_places(settings, spec)
    sandbox = PrivateSandbox(registry.sandbox(spec.sandbox), places)
    registry.require_loader(spec.engine)
    ready = driving.Ready(spec, agent, settings, again)
    _raise_file_limit()
    with desks.opened(desks.Wanted.of(spec), task, settings) as desk, opened() as recorder:
        paths, past = recorder.paths, recorder.past
        outcome = Outcome.of(paths.run_id, spec, past)
        try:
            outcome.isolation = steps.try_sandbox(sandbox, recorder)
            assets = steps.prepare_assets(spec, task, settings, recorder)
            outcome.assets = assets.records
            sandbox = replace(sandbox, places=places.with_assets(assets))
            prefix = steps.install_agent(spec, agent, settings, recorder)
            brief = steps.lay_workspace(spec, task, sandbox, assets, settings, recorder)
            child = steps.grading_child(spec, task, sandbox, assets, settings, recorder)
            child = replace(child, desk=desk.socket, offer=desk.offer)
            cache = settings.cache / "baselines" if desk.repeatable else None
            untouched = Baseline(child, assets.base, task.evaluator.version, cache)
            outcome.baseline, _ = steps.grade_baseline(untouched, "feedback", recorder, stop)
            graded = steps.grade_against(spec, brief, assets, outcome.baseline, child, settings)
            code, observer = Recording(recorder, workspace.LAID), Observer(recorder)
            service = Service(graded, spec.budget, recorder, stop, code.submitted)
            with (
                serve(application(service, task.id)) as socket,
                worlds.doors(task, paths, assets, service) as more,
                training_judge.offered(spec, settings, recorder) as teacher,
                ready.serving(prefix, recorder, stop) as driver,
            ):
                again = False  # from here on the run goes on, whatever becomes of it
                doors = (Door("GRADING_SERVER_URL", socket), *more, *teacher.doors, *driver.doors)
                told = driver.told(worlds.told(task, brief, service))
                enclosure = replace(steps.enclose(spec, child, assets, doors, paths), seen=observer)
                start = rounds.Start(agent, sandbox, enclosure, steps.find_secrets(agent, recorder), driver)
                with code.watching(start.brings(told)), observer.observing():
                    service.catch_up()
                    over = past.over
                    if over is None:
                        deadline = service.start()
                        recorder.started(deadline, INSTRUCTIONS_VERSION)
                        workspace.write_meta(paths.workspace, spec, task, service.started_at)
                        over = rounds.play(start, told, service, recorder, spec.continues)
                    service.finish()
            outcome.train_judge = teacher.use()
            outcome.rollouts = service.meter.close() if task.world else None
            outcome.agent_ended(over, driver, service)
            accounts.keep(agent, enclosure.scratch / "home", recorder)
            given = workspace.given(task, brief, assets)
            steps.look_for_contamination(outcome, Scan(child, paths.workspace, given), recorder, stop)
            steps.grade_heldout(outcome, untouched, service.grader, recorder, stop)
        except Agent2RLError as error:
            if again and not stop.is_set():
                raise
            outcome.failed(str(error))
        except Exception as error:
            recorder.event("fault", where="run", trace=traceback.format_exc())
            if again:
                raise
            outcome.failed(f"A fault of agent2rl or of a plugin: {type(error).__name__}: {error}")
        if stop.is_set():
            outcome.ending = "interrupted"
        outcome.judge_usage = desk.judged() if desk.judged and not past.resumed else None
        result = outcome.result()
        recorder.close(result)
    return Finished(result, paths, recorder.ledger_head)


def _raise_file_limit() -> None:
    """As many open files as the user may have: the agent decides how many connections there are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
