"""Opens the desk of a run: what its gradings may search, and who judges. Refuses before anything is spent."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Usage
from agent2rl.core.records import RunSpec
from agent2rl.core.task import Task
from agent2rl.environments.search.choosing import KEYS, KNOWN, choose, is_live
from agent2rl.environments.search.local import Local
from agent2rl.environments.search.replay import Recording
from agent2rl.grading.desk import Offer, Searching, served
from agent2rl.runner import judges
from agent2rl.runner.settings import Settings, secrets
from agent2rl.store.files import canonical


@dataclass(frozen=True)
class Wanted:
    """What the user names for the desk."""

    search: str | None = None
    record: str | None = None
    judge: str | None = None
    train_judge: str | None = None

    @classmethod
    def of(cls, spec: RunSpec) -> "Wanted":
        return cls(spec.search, spec.record_searches, spec.judge, spec.train_judge)


@dataclass(frozen=True)
class Opened:
    socket: Path | None
    """None where the task asks for nothing, or nothing is named."""
    offer: str
    """What results depend on."""
    repeatable: bool = True
    """Whether the same offer gives the same results, and no record wants to see them come about."""
    judged: Callable[[], Usage] | None = None
    """What the judge was asked so far, where it is asked through a gateway."""


@contextmanager
def opened(wanted: Wanted, task: Task, settings: Settings, needed: bool = True) -> Iterator[Opened]:
    """The desk while the context lasts. Unless it is `needed`, a task that searches may do without."""
    _require(wanted, task, needed)
    if wanted.judge and wanted.train_judge:
        judges.require_other(wanted.judge, wanted.train_judge, settings)
    with ExitStack() as stack:
        judging = stack.enter_context(judges.judge(wanted.judge, settings)) if wanted.judge else None
        offer = Offer(_searching(wanted, stack), judging)
        about = offer.about().model_dump()
        if wanted.record:  # which grows
            about["record_sha256"] = None
        socket = stack.enter_context(served(offer))
        live = wanted.search is not None and (bool(wanted.record) or is_live(wanted.search))
        used = judging.usage if judging else None
        yield Opened(socket, canonical(about) if socket else "", repeatable=not live, judged=used)


def _require(wanted: Wanted, task: Task, needed: bool) -> None:
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
        judges.require(name)


def _searching(wanted: Wanted, stack: ExitStack) -> Searching | None:
    if not wanted.search:
        return None
    backend = choose(wanted.search, secrets(KEYS))
    corpus = backend.sha256 if isinstance(backend, Local) else None
    if wanted.record:
        path = Path(wanted.record)
        recording = stack.enter_context(closing(Recording(backend, wanted.search, path)))
        return Searching(wanted.search, recording, path, corpus)
    head, _, argument = wanted.search.partition(":")
    return Searching(wanted.search, backend, Path(argument) if head == "replay" else None, corpus)
