"""One run, as a straight line."""

import resource
import threading
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import agent2rl
from agent2rl import registry
from agent2rl.analysis import statistics
from agent2rl.core.agent import Agent, Brief, Driven
from agent2rl.core.errors import Agent2RLError, MachineError
from agent2rl.core.records import (
    Contamination,
    EvalResult,
    EvalSettings,
    Isolation,
    RunResult,
    RunSpec,
    Score,
    Split,
    Submission,
)
from agent2rl.core.sandbox import Door, Enclosure, Sandbox
from agent2rl.core.task import Task
from agent2rl.grading.api import application
from agent2rl.grading.baseline import Baseline
from agent2rl.grading.child import Child
from agent2rl.grading.programs import program_sandboxes
from agent2rl.grading.scan import Scan
from agent2rl.grading.server import serve
from agent2rl.grading.service import Graded, Service
from agent2rl.grading.worker import prompted
from agent2rl.runner import accounts, desks, driving, machine, rounds, training_judge, workspace, worlds
from agent2rl.runner.assets import Assets, prepare
from agent2rl.runner.installing import install
from agent2rl.runner.observing import Observer
from agent2rl.runner.outcome import Outcome
from agent2rl.runner.recording import Recording
from agent2rl.runner.settings import Settings, secrets
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
    task = prompted(registry.task(spec.task), spec.prompts)
    agent = registry.agent(spec.agent)
    sandbox = registry.sandbox(spec.sandbox)
    registry.require_loader(spec.engine)
    ready = driving.Ready(spec, agent, settings)
    _raise_file_limit()
    with (
        desks.opened(desks.Wanted.of(spec), task, settings) as desk,
        Recorder.create(settings.runs, spec, notify) as recorder,
    ):
        paths = recorder.paths
        outcome = Outcome(paths.run_id, spec)
        try:
            outcome.isolation = _isolation(sandbox, recorder)
            assets = _assets(spec, task, settings, recorder)
            outcome.assets = assets.records
            prefix = _installed(spec, agent, settings, recorder)
            brief = workspace.build(paths.workspace, sandbox.workspace(paths.workspace), spec, task, assets)
            child = _child(spec, task, sandbox, assets, settings)
            child = replace(child, desk=desk.socket, offer=desk.offer)
            recorder.entry("limits", **child.limits.model_dump())
            cache = settings.cache / "baselines" if desk.repeatable else None
            untouched = Baseline(child, assets.base, task.evaluator.version, cache)
            outcome.baseline, _ = _baseline(untouched, "feedback", recorder, stop)
            graded = _graded(spec, brief, assets, outcome.baseline, child, settings)
            code = Recording(recorder, workspace.LAID)
            service = Service(graded, spec.budget, recorder, stop, code.submitted)
            observer = Observer(recorder)
            with (
                serve(application(service, task.id)) as socket,
                worlds.doors(task, paths, assets, service) as more,
                training_judge.offered(spec, settings, recorder) as teacher,
                ready.serving(prefix, recorder, stop) as driver,
            ):
                doors = (Door("GRADING_SERVER_URL", socket), *more, *teacher.doors, *driver.doors)
                told = driver.told(worlds.told(task, brief, service))
                enclosure = replace(_enclosure(spec, child, assets, doors, paths), seen=observer)
                start = rounds.Start(agent, sandbox, enclosure, _secrets(agent, recorder), driver)
                with code.watching(start.brings(told)), observer.observing():
                    recorder.entry("started", deadline=service.start())
                    workspace.write_meta(paths.workspace, spec, task, service.started_at)
                    ended = rounds.play(start, told, service, recorder, spec.continues)
                    service.finish()
            outcome.train_judge = teacher.use()
            outcome.rollouts = service.meter.close() if task.world else None
            outcome.agent_ended(ended, driver, service, paths.agent_log)
            accounts.keep(agent, enclosure.scratch / "home", recorder)
            given = workspace.given(task, brief, assets)
            _contamination(outcome, Scan(child, paths.workspace, given), recorder, stop)
            if outcome.best and spec.protocol == "heldout" and not stop.is_set():
                _final(outcome, outcome.best, untouched, recorder, stop)
        except Agent2RLError as error:
            outcome.failed(str(error))
        except Exception as error:
            recorder.event("fault", where="run", trace=traceback.format_exc())
            outcome.failed(f"A fault of agent2rl or of a plugin: {type(error).__name__}: {error}")
        if stop.is_set():
            outcome.ending = "interrupted"
        outcome.judge_usage = desk.judged() if desk.judged else None
        result = outcome.result()
        recorder.close(result)
    return Finished(result, paths, recorder.ledger_head)


def _raise_file_limit() -> None:
    """As many open files as the user may have: the agent decides how many connections there are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _isolation(sandbox: Sandbox, recorder: Recorder) -> Isolation:
    """Every promise is tried before anything untrusted starts."""
    recorder.event("phase", name="self-test")
    isolation = sandbox.check()
    recorder.entry("isolation", **isolation.model_dump(mode="json"))
    if isolation.broken:
        broken = isolation.broken[0]
        raise MachineError(f"The sandbox does not hold: {broken.name}.", broken.mend)
    return isolation


def _assets(spec: RunSpec, task: Task, settings: Settings, recorder: Recorder) -> Assets:
    recorder.event("phase", name="assets")
    assets = prepare(spec, task, settings.cache, lambda text: recorder.event("preparing", text=text))
    recorder.entry("assets", assets=[record.model_dump() for record in assets.records])
    return assets


def _installed(spec: RunSpec, agent: Agent, settings: Settings, recorder: Recorder) -> Path | None:
    """Where somebody else's program is; the first time it is wanted, it is installed."""
    if not isinstance(agent, Driven):
        return None
    name = spec.agent.partition(":")[0]
    prefix = install(name, agent.package, settings.cache, lambda text: recorder.event("preparing", text=text))
    recorder.entry("agent", name=name, package=agent.package.name, version=agent.package.version)
    return prefix


def _child(spec: RunSpec, task: Task, sandbox: Sandbox, assets: Assets, settings: Settings) -> Child:
    return Child(
        sandbox=sandbox,
        task=spec.task,
        engine=spec.engine,
        settings=EvalSettings(seed=spec.seed, samples=spec.samples, temperature=spec.temperature),
        prompts=spec.prompts,
        splits=assets.splits,
        beside=assets.beside,
        limits=spec.limits or machine.default_limits(settings.runs),
        seconds=spec.grading_seconds,
        code=task.code,
        programs=program_sandboxes(task),
        python_path=settings.python_path,
    )


def _baseline(
    baseline: Baseline, split: Split, recorder: Recorder, stop: threading.Event
) -> tuple[Score, EvalResult]:
    recorder.event("phase", name="baseline", split=split)
    where = recorder.paths.baseline
    where.root.mkdir(parents=True, exist_ok=True)
    found, cached = baseline.grade(split, where.log, recorder.paths.scratch, stop)
    recorder.results(where, split, found)
    score = statistics.score(found, split)
    recorder.entry("baseline", split=split, score=score.model_dump(), cached=cached)
    return score, found


def _graded(
    spec: RunSpec, brief: Brief, assets: Assets, baseline: Score, child: Child, settings: Settings
) -> Graded:
    return Graded(
        seen_at=brief.workspace,
        base=assets.base,
        base_seen_at=workspace.model_path(spec),
        baseline=baseline,
        child=child,
        gpus=machine.gpus(settings.gpus),
    )


def _secrets(agent: Agent, recorder: Recorder) -> dict[str, str]:
    found = secrets(agent.secrets)
    for name in sorted(set(agent.secrets) - set(found)):
        recorder.event("warning", text=f"The agent asks for {name}, which is not set.")
    return found


def _enclosure(
    spec: RunSpec, child: Child, assets: Assets, doors: tuple[Door, ...], paths: RunPaths
) -> Enclosure:
    return Enclosure(
        role="agent",
        workspace=paths.workspace,
        scratch=paths.scratch / "agent",
        log=paths.agent_log,
        wall_seconds=spec.budget.wall_seconds,
        limits=child.limits,
        mounts=workspace.mounts(paths.workspace, spec, assets),
        hidden=_hidden(spec),
        doors=doors,
    )


def _hidden(spec: RunSpec) -> tuple[Path, ...]:
    """What of this package the agent must not read: evaluation data, and an expert that is withheld."""
    package = Path(agent2rl.__file__).parent
    experts = () if spec.expert else package.glob("environments/*/expert")
    return (package / "tasks", *experts)


def _final(
    outcome: Outcome, best: Submission, baseline: Baseline, recorder: Recorder, stop: threading.Event
) -> None:
    """The held-out split is opened now, once: for the baseline and for the submission that feedback chose."""
    outcome.baseline_heldout, before = _baseline(baseline, "heldout", recorder, stop)
    recorder.event("phase", name="held-out", submission=best.id)
    where = recorder.paths.submission(best.id)
    after = baseline.child.grade(where.model, "heldout", where.log, recorder.paths.scratch, stop)
    recorder.results(where, "heldout", after)
    outcome.best_heldout = statistics.score(after, "heldout")
    outcome.heldout = statistics.compare(before, after)
    recorder.entry("heldout", submission=best.id, score=outcome.best_heldout.model_dump())


def _contamination(outcome: Outcome, scan: Scan, recorder: Recorder, stop: threading.Event) -> None:
    """Look through what the agent left. What goes wrong here costs this answer, never the run's result."""
    recorder.event("phase", name="contamination")
    try:
        found = scan.run(recorder.paths.contamination_log, recorder.paths.scratch, stop)
    except Agent2RLError as error:
        found = Contamination(done=False, reason=str(error))
    except Exception as error:
        recorder.event("fault", where="contamination", trace=traceback.format_exc())
        found = Contamination(done=False, reason=f"A fault of agent2rl: {type(error).__name__}: {error}")
    recorder.contamination(found)
    outcome.contamination = found.summary
