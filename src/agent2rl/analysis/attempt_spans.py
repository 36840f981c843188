"""Cuts a run into attempts, each with all that was recorded of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent2rl.analysis import printed_output
from agent2rl.analysis.attempts import AgentSourceFile, AttemptSpan
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.core.events import TimelineEvent
from agent2rl.core.records import Rollouts, Submission
from agent2rl.store.reader import RunView
from agent2rl.store.revisions import RevisionReader

WORTH_SECONDS = 5.0
"""What comes after the last submission is an attempt where it computed so long, changed code, or broke."""
MODELS = "output/"
"""What changes there is what was trained, not how."""
BROKE = "Traceback (most recent call last)"
Texts = Mapping[str, str]


@dataclass(frozen=True)
class RevisionPin:
    """A revision of the code, and how much agent.log held when it was taken."""

    number: int
    commit: str
    log_bytes: int = 0


@dataclass(frozen=True)
class AttemptEnd:
    """Where an attempt ends: at a submission, or with the agent's time."""

    at: float
    submission: Submission | None
    pin: RevisionPin | None


def split_attempts(
    view: RunView, timeline: AgentTimeline, events: Sequence[TimelineEvent], notes: list[str]
) -> tuple[AttemptSpan, ...]:
    """One for each submission, and one for what came after the last where that was an attempt."""
    if timeline.started is None:
        return ()
    ends = _list_ends(view, timeline, events)
    texts = _read_texts(view, ends, notes)
    logs = printed_output.read_agent_log(
        view.paths.agent_log, [end.pin.log_bytes if end.pin else 0 for end in ends[:-1]]
    )
    files = printed_output.read_log_files(view.paths.workspace, timeline, [end.at for end in ends])
    found: list[AttemptSpan] = []
    began, before = 0.0, _read_initial_code(events, view, notes)
    for place, end in enumerate(ends):
        code = texts.get(end.pin.commit, {}) if end.pin else {}
        number = end.pin.number if end.pin else 0
        found.append(
            AttemptSpan(
                number=place + 1,
                began=began,
                ended=end.at,
                submission=end.submission,
                sources=tuple(AgentSourceFile(number, path, text) for path, text in code.items()),
                changed=tuple(
                    path for path in sorted({*code, *before}) if code.get(path) != before.get(path)
                ),
                processes=tuple(each for each in timeline.processes if each.ran_between(began, end.at)),
                weights=tuple(each for each in timeline.weights if began < each.at <= end.at),
                rollouts=_sum_rollouts(timeline, began, end.at),
                printed=(*logs[place], *files[place]),
            )
        )
        began, before = end.at, code or before
    kept = found if _is_attempt(found, timeline) else found[:-1]
    return (*kept[:-1], replace(kept[-1], last=True))


def _list_ends(view: RunView, timeline: AgentTimeline, events: Sequence[TimelineEvent]) -> list[AttemptEnd]:
    pins, last = _pin_revisions(events)
    ends: list[AttemptEnd] = []
    for each in sorted(view.submissions, key=lambda one: one.id):
        at = max(timeline.seconds_at(each.accepted_at), ends[-1].at if ends else 0.0)
        ends.append(AttemptEnd(at, each, pins.get(each.id)))
    return [*ends, AttemptEnd(max(timeline.seconds, ends[-1].at if ends else 0.0), None, last)]


def _pin_revisions(events: Sequence[TimelineEvent]) -> tuple[dict[int, RevisionPin], RevisionPin | None]:
    """Of each submission, and the newest of all."""
    pins: dict[int, RevisionPin] = {}
    last: RevisionPin | None = None
    for event in events:
        if event.kind in ("revision", "revision_of"):
            number, commit = event.data.get("number"), event.data.get("commit")
            size, submission = event.data.get("log_bytes"), event.data.get("submission")
            if isinstance(number, int) and isinstance(commit, str):
                last = RevisionPin(number, commit, size if isinstance(size, int) else 0)
                if isinstance(submission, int):
                    pins[submission] = last
    return pins, last


def _read_texts(view: RunView, ends: Sequence[AttemptEnd], notes: list[str]) -> dict[str, Texts]:
    """The code at each end, by its commit."""
    return _read_revisions(view, [end.pin.commit for end in ends if end.pin], notes)


def _read_initial_code(events: Sequence[TimelineEvent], view: RunView, notes: list[str]) -> Texts:
    """The code as the agent found it."""
    first = next((event.data.get("commit") for event in events if event.kind == "revision"), None)
    return _read_revisions(view, [first], notes).get(first, {}) if isinstance(first, str) else {}


def _read_revisions(view: RunView, commits: Sequence[str], notes: list[str]) -> dict[str, Texts]:
    if not commits:
        return {}
    try:
        code = RevisionReader(view.paths.revisions)
        try:
            return {commit: code.read_texts(commit) for commit in dict.fromkeys(commits)}
        finally:
            code.close()
    except Exception as error:  # a damaged repository fails in many ways
        notes.append(f"revisions cannot be read ({type(error).__name__})")
        return {}


def _sum_rollouts(timeline: AgentTimeline, began: float, ended: float) -> Rollouts:
    return sum((new for at, new in timeline.played if began < at <= ended), Rollouts())


def _is_attempt(found: Sequence[AttemptSpan], timeline: AgentTimeline) -> bool:
    last = found[-1]
    trained = sum(
        min(stretch.ended, last.ended) - max(stretch.began, last.began)
        for stretch in timeline.stretches
        if stretch.kind == "training" and stretch.ended > last.began
    )
    written = any(not path.startswith(MODELS) for path in last.changed)
    broke = any(BROKE in each.text for each in last.printed)
    return len(found) == 1 or trained >= WORTH_SECONDS or written or broke
