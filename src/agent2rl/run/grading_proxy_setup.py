"""Open the grading proxy of a run (search and judge). Refuse invalid options before anything is spent."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.llm import LlmUsage
from agent2rl.core.records import RunSpec
from agent2rl.core.task import Task
from agent2rl.environments.search.backends import LocalCorpus, RecordingBackend
from agent2rl.environments.search.search_engines import KEYS, KNOWN, is_live, open_backend
from agent2rl.grading.grading_proxy import ProxyServices, SearchProxy, serve_grading_proxy
from agent2rl.record.files import canonical_json
from agent2rl.run import judges
from agent2rl.run.settings import Settings, read_secrets


@dataclass(frozen=True)
class GradingProxyOptions:
    """The user's options for the grading proxy."""

    search: str | None = None
    record: str | None = None
    judge: str | None = None
    train_judge: str | None = None

    @classmethod
    def from_spec(cls, spec: RunSpec) -> "GradingProxyOptions":
        return cls(spec.search, spec.record_searches, spec.judge, spec.train_judge)


@dataclass(frozen=True)
class OpenedGradingProxy:
    socket: Path | None
    """None if the task needs no proxy, or the user names nothing for it."""
    description: str
    """Description of the services, on which results depend."""
    repeatable: bool = True
    """Whether the same services give the same results, and no searches are recorded."""
    read_judge_usage: Callable[[], LlmUsage] | None = None
    """Returns the judge's usage so far, if it is asked through a gateway."""


@contextmanager
def open_grading_proxy(
    options: GradingProxyOptions, task: Task, settings: Settings, needed: bool = True
) -> Iterator[OpenedGradingProxy]:
    """Serve the grading proxy inside the context. Unless `needed`, a task that searches may go without."""
    _validate_options(options, task, needed)
    if options.judge and options.train_judge:
        judges.require_different_judges(options.judge, options.train_judge, settings)
    with ExitStack() as stack:
        judging = stack.enter_context(judges.open_judge(options.judge, settings)) if options.judge else None
        services = ProxyServices(_open_search(options, stack), judging)
        about = services.describe_services().model_dump()
        if options.record:  # the file grows during the run
            about["record_sha256"] = None
        socket = stack.enter_context(serve_grading_proxy(services))
        # Results of a live search change, so what was measured with them is not used again.
        live = options.search is not None and (bool(options.record) or is_live(options.search))
        yield OpenedGradingProxy(
            socket,
            canonical_json(about) if socket else "",
            repeatable=not live,
            read_judge_usage=judging.usage if judging else None,
        )


def _validate_options(options: GradingProxyOptions, task: Task, needed: bool) -> None:
    if options.search and "search" not in task.proxy_services:
        raise UserError(f"The task {task.id!r} does not search.", "Leave out --search.")
    if needed and "search" in task.proxy_services and not options.search:
        raise UserError(f"The task {task.id!r} needs a search backend: name one with --search.", KNOWN)
    if options.record and not options.search:
        raise UserError("There are no searches to record.", "Leave out --record-searches.")
    if options.record and (options.search or "").startswith("replay:"):
        raise UserError(
            "A replay cannot be recorded: it is already a recording.", "Leave out --record-searches."
        )
    if options.judge and "judge" not in task.proxy_services:
        raise UserError(f"The task {task.id!r} is scored by a rule, not a judge.", "Leave out --judge.")
    if options.train_judge and "judge" not in task.proxy_services:
        raise UserError(f"No judge scores the task {task.id!r}.", "Leave out --train-judge.")
    if needed and task.judged and not options.judge:
        raise UserError(f"The task {task.id!r} is scored by a judge: name one with --judge.", judges.JUDGES)
    for name in filter(None, (options.judge, options.train_judge)):
        judges.validate_judge_name(name)


def _open_search(options: GradingProxyOptions, stack: ExitStack) -> SearchProxy | None:
    if not options.search:
        return None
    backend = open_backend(options.search, read_secrets(KEYS))
    corpus = backend.sha256 if isinstance(backend, LocalCorpus) else None
    if options.record:
        path = Path(options.record)
        recording = stack.enter_context(closing(RecordingBackend(backend, options.search, path)))
        return SearchProxy(options.search, recording, path, corpus)
    head, _, argument = options.search.partition(":")
    return SearchProxy(options.search, backend, Path(argument) if head == "replay" else None, corpus)
