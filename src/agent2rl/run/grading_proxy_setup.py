"""Opens the desk of a run: what its gradings may search, and who judges. Refuses before anything is spent."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.llm import LlmUsage
from agent2rl.core.records import RunSpec
from agent2rl.core.task import Task
from agent2rl.environments.search.backend_names import KEYS, KNOWN, is_live, open_backend
from agent2rl.environments.search.backends import LocalCorpus, RecordingBackend
from agent2rl.grading.grading_proxy import ProxyServices, SearchProxy, serve_grading_proxy
from agent2rl.record.files import canonical_json
from agent2rl.run import judges
from agent2rl.run.settings import Settings, read_secrets


@dataclass(frozen=True)
class GradingProxyOptions:
    """What the user names for the desk."""

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
    """None where the task asks for nothing, or nothing is named."""
    offer: str
    """What results depend on."""
    repeatable: bool = True
    """Whether the same offer gives the same results, and no record wants to see them come about."""
    judged: Callable[[], LlmUsage] | None = None
    """What the judge was asked so far, where it is asked through a gateway."""


@contextmanager
def open_grading_proxy(
    wanted: GradingProxyOptions, task: Task, settings: Settings, needed: bool = True
) -> Iterator[OpenedGradingProxy]:
    """The desk while the context lasts. Unless it is `needed`, a task that searches may do without."""
    _validate_options(wanted, task, needed)
    if wanted.judge and wanted.train_judge:
        judges.require_different_judges(wanted.judge, wanted.train_judge, settings)
    with ExitStack() as stack:
        judging = stack.enter_context(judges.open_judge(wanted.judge, settings)) if wanted.judge else None
        offer = ProxyServices(_open_search(wanted, stack), judging)
        about = offer.describe_services().model_dump()
        if wanted.record:  # which grows
            about["record_sha256"] = None
        socket = stack.enter_context(serve_grading_proxy(offer))
        live = wanted.search is not None and (bool(wanted.record) or is_live(wanted.search))
        used = judging.usage if judging else None
        yield OpenedGradingProxy(
            socket, canonical_json(about) if socket else "", repeatable=not live, judged=used
        )


def _validate_options(wanted: GradingProxyOptions, task: Task, needed: bool) -> None:
    if wanted.search and "search" not in task.desk:
        raise UserError(f"The task {task.id!r} searches nothing outside.", "Leave out --search.")
    if needed and "search" in task.desk and not wanted.search:
        raise UserError(f"The task {task.id!r} searches: name what, with --search.", KNOWN)
    if wanted.record and not wanted.search:
        raise UserError("There are no searches to record.", "Leave out --record-searches.")
    if wanted.record and (wanted.search or "").startswith("replay:"):
        raise UserError("A replay is a record already.", "Leave out --record-searches.")
    if wanted.judge and "judge" not in task.desk:
        raise UserError(f"The task {task.id!r} is scored by a rule, not a judge.", "Leave out --judge.")
    if wanted.train_judge and "judge" not in task.desk:
        raise UserError(f"No judge scores the task {task.id!r}.", "Leave out --train-judge.")
    if needed and task.judged and not wanted.judge:
        raise UserError(f"The task {task.id!r} is scored by a judge: name one, with --judge.", judges.JUDGES)
    for name in filter(None, (wanted.judge, wanted.train_judge)):
        judges.validate_judge_name(name)


def _open_search(wanted: GradingProxyOptions, stack: ExitStack) -> SearchProxy | None:
    if not wanted.search:
        return None
    backend = open_backend(wanted.search, read_secrets(KEYS))
    corpus = backend.sha256 if isinstance(backend, LocalCorpus) else None
    if wanted.record:
        path = Path(wanted.record)
        recording = stack.enter_context(closing(RecordingBackend(backend, wanted.search, path)))
        return SearchProxy(wanted.search, recording, path, corpus)
    head, _, argument = wanted.search.partition(":")
    return SearchProxy(wanted.search, backend, Path(argument) if head == "replay" else None, corpus)
