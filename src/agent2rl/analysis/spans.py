"""Cuts a run into attempts, each with all that was recorded of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent2rl.analysis import printed
from agent2rl.analysis.attempts import Source, Span
from agent2rl.analysis.timeline import Timeline
from agent2rl.core.events import Event
from agent2rl.core.records import Rollouts, Submission
from agent2rl.store.reader import RunView
from agent2rl.store.revisions import Code

WORTH_SECONDS = 5.0
"""What comes after the last submission is an attempt where it computed so long, changed code, or broke."""
MODELS = "output/"
"""What changes there is what was trained, not how."""
BROKE = "Traceback (most recent call last)"
Texts = Mapping[str, str]


@dataclass(frozen=True)
class Pin:
    """A revision of the code, and how much agent.log held when it was taken."""

    number: int
    commit: str
    log_bytes: int = 0


@dataclass(frozen=True)
class End:
    """Where an attempt ends: at a submission, or with the agent's time."""

    at: float
    submission: Submission | None
    pin: Pin | None


def spans(view: RunView, timeline: Timeline, events: Sequence[Event], notes: list[str]) -> tuple[Span, ...]:
    """One for each submission, and one for what came after the last where that was an attempt."""
    if timeline.started is None:
        return ()
    ends = _ends(view, timeline, events)
    texts = _texts(view, ends, notes)
    logs = printed.of_log(view.paths.agent_log, [end.pin.log_bytes if end.pin else 0 for end in ends[:-1]])
    files = printed.of_files(view.paths.workspace, timeline, [end.at for end in ends])
    found: list[Span] = []
    began, before = 0.0, _given(events, view, notes)
    for place, end in enumerate(ends):
        code = texts.get(end.pin.commit, {}) if end.pin else {}
        number = end.pin.number if end.pin else 0
        found.append(
            Span(
                number=place + 1,
                began=began,
                ended=end.at,
                submission=end.submission,
                sources=tuple(Source(number, path, text) for path, text in code.items()),
                changed=tuple(
                    path for path in sorted({*code, *before}) if code.get(path) != before.get(path)
                ),
                processes=tuple(each for each in timeline.processes if each.alive(began, end.at)),
                weights=tuple(each for each in timeline.weights if began < each.at <= end.at),
                rollouts=_played(timeline, began, end.at),
                printed=(*logs[place], *files[place]),
            )
        )
        began, before = end.at, code or before
    kept = found if _is_attempt(found, timeline) else found[:-1]
    return (*kept[:-1], replace(kept[-1], last=True))


def _ends(view: RunView, timeline: Timeline, events: Sequence[Event]) -> list[End]:
    pins, last = _pins(events)
    ends: list[End] = []
    for each in sorted(view.submissions, key=lambda one: one.id):
        at = max(timeline.at(each.accepted_at), ends[-1].at if ends else 0.0)
        ends.append(End(at, each, pins.get(each.id)))
    return [*ends, End(max(timeline.seconds, ends[-1].at if ends else 0.0), None, last)]


def _pins(events: Sequence[Event]) -> tuple[dict[int, Pin], Pin | None]:
    """Of each submission, and the newest of all."""
    pins: dict[int, Pin] = {}
    last: Pin | None = None
    for event in events:
        if event.kind in ("revision", "revision_of"):
            number, commit = event.data.get("number"), event.data.get("commit")
            size, submission = event.data.get("log_bytes"), event.data.get("submission")
            if isinstance(number, int) and isinstance(commit, str):
                last = Pin(number, commit, size if isinstance(size, int) else 0)
                if isinstance(submission, int):
                    pins[submission] = last
    return pins, last


def _texts(view: RunView, ends: Sequence[End], notes: list[str]) -> dict[str, Texts]:
    """The code at each end, by its commit."""
    return _code(view, [end.pin.commit for end in ends if end.pin], notes)


def _given(events: Sequence[Event], view: RunView, notes: list[str]) -> Texts:
    """The code as the agent found it."""
    first = next((event.data.get("commit") for event in events if event.kind == "revision"), None)
    return _code(view, [first], notes).get(first, {}) if isinstance(first, str) else {}


def _code(view: RunView, commits: Sequence[str], notes: list[str]) -> dict[str, Texts]:
    if not commits:
        return {}
    try:
        code = Code(view.paths.revisions)
        try:
            return {commit: code.texts(commit) for commit in dict.fromkeys(commits)}
        finally:
            code.close()
    except Exception as error:  # a damaged repository fails in many ways
        notes.append(f"revisions cannot be read ({type(error).__name__})")
        return {}


def _played(timeline: Timeline, began: float, ended: float) -> Rollouts:
    return sum((new for at, new in timeline.played if began < at <= ended), Rollouts())


def _is_attempt(found: Sequence[Span], timeline: Timeline) -> bool:
    last = found[-1]
    trained = sum(
        min(stretch.ended, last.ended) - max(stretch.began, last.began)
        for stretch in timeline.stretches
        if stretch.kind == "training" and stretch.ended > last.began
    )
    written = any(not path.startswith(MODELS) for path in last.changed)
    broke = any(BROKE in each.text for each in last.printed)
    return len(found) == 1 or trained >= WORTH_SECONDS or written or broke
