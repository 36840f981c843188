"""Pages about one run: status, code at each revision, examples and episodes, transcript, log."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import ExampleResult, Split
from agent2rl.dashboard import run_status, state
from agent2rl.dashboard.rendering import render_response
from agent2rl.dashboard.run_status import LiveRunStatus, read_answers
from agent2rl.dashboard.state import Dashboard
from agent2rl.record import ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_transcript
from agent2rl.record.revisions import Revision, RevisionReader, list_revisions
from agent2rl.report import run_changes
from agent2rl.report.run_changes import Change, ExampleChange

# The agent's code at any revision, and the changes between two of them.

LONGEST_CODE = 1 << 18


@dataclass(frozen=True)
class CodeView:
    revisions: tuple[Revision, ...]
    submissions: dict[int, list[int]]
    """Revision → submissions made from it."""
    at: Revision | None
    since: Revision | None
    """The revision to compare with; None compares with nothing."""
    changes: run_changes.CodeDiff | None
    files: tuple[str, ...]
    file: str
    text: str
    cut: int
    """Number of characters that are not shown."""


def read_code_view(paths: RunPaths, at: int | None, since: int | None, file: str) -> CodeView:
    try:
        revisions = list_revisions(paths.revisions)
    except Exception as error:  # dulwich raises all kinds of errors for a damaged repository
        raise UserError("The recorded code of this run is damaged.") from error
    by_number = {each.number: each for each in revisions}
    made_from = _map_submissions(ledger.read_ledger(paths.ledger, paths.ledger_head))
    if not revisions:
        return CodeView((), {}, None, None, None, (), "", "", 0)
    number = at if at is not None else max((*made_from, 0)) or revisions[-1].number
    before = since if since is not None else number - 1
    for requested in (number, before):
        if requested and requested not in by_number:
            raise UserError(f"Revision {requested} does not exist: the run has {len(revisions)}.")
    now, then = by_number.get(number), by_number.get(before)
    return _read_revision(paths, tuple(revisions), made_from, now, then, file)


def _read_revision(
    paths: RunPaths,
    revisions: tuple[Revision, ...],
    made_from: dict[int, list[int]],
    now: Revision | None,
    then: Revision | None,
    file: str,
) -> CodeView:
    if now is None:
        return CodeView(revisions, made_from, None, None, None, (), "", "", 0)
    code = RevisionReader(paths.revisions)
    try:
        texts = code.read_texts(now.commit)
        changed = code.diff_commits(then.commit if then else None, now.commit, LONGEST_CODE)
    except Exception as error:
        raise UserError("The recorded code of this run is damaged.") from error
    finally:
        code.close()
    if file and file not in texts:
        raise UserError(f"Revision {now.number} has no text file {file!r}.")
    name = file or next((each for each in texts if each.endswith(".py")), next(iter(texts), ""))
    text = texts.get(name, "")
    diff = run_changes.parse_diffs({0: changed[:LONGEST_CODE]}).get(0)
    return CodeView(
        revisions,
        made_from,
        now,
        then,
        diff,
        tuple(texts),
        name,
        text[:LONGEST_CODE],
        max(0, len(text) - LONGEST_CODE),
    )


def _map_submissions(chain: ledger.LedgerReading) -> dict[int, list[int]]:
    by_revision: dict[int, list[int]] = {}
    for entry in chain.entries:
        revision, submission = entry.data.get("number"), entry.data.get("submission")
        if entry.kind == "revision_of" and isinstance(revision, int) and isinstance(submission, int):
            by_revision.setdefault(revision, []).append(submission)
    return by_revision


# Answers to each example next to those of the untouched model, and episodes step by step.

T = TypeVar("T")
PAGE, STEPS = 50, 40
SPLITS: tuple[Split, ...] = ("heldout", "feedback")
SHOW = ("all", "flipped", "gained", "lost", "right", "wrong")


@dataclass(frozen=True)
class PageSlice(Generic[T]):
    """One page of a long list."""

    items: Sequence[T]
    page: int
    pages: int
    first: int
    """Number of its first item, from 1."""


def slice_page(items: Sequence[T], page: int, size: int) -> PageSlice[T]:
    pages = max(1, -(-len(items) // size))
    at = min(max(1, page), pages)
    return PageSlice(items[(at - 1) * size : at * size], at, pages, (at - 1) * size + 1)


@dataclass(frozen=True)
class ExamplesView:
    submission: int | None
    """None if only the untouched model has answers."""
    split: Split
    show: str
    graded: tuple[int, ...]
    """Submissions that have answers on this split."""
    splits: tuple[Split, ...]
    counts: dict[Change, int]
    part: PageSlice[ExampleChange]
    total: int


def read_examples_view(
    run: LiveRunStatus, submission: int | None, split: Split, show: str, page: int
) -> ExamplesView:
    graded = {each: _list_graded(run, each) for each in SPLITS}
    splits = tuple(each for each in SPLITS if graded[each] or read_answers(run.view.paths, 0, each))
    where = split if split in splits or not splits else splits[0]
    best = run.best.id if run.best else None
    number = submission if submission is not None else best if best in graded[where] else None
    if number is None and graded[where]:
        number = graded[where][-1]
    before = {each.id: each for each in read_answers(run.view.paths, 0, where)}
    after = {each.id: each for each in read_answers(run.view.paths, number, where)} if number else {}
    rows = [
        ExampleChange(
            name, (before.get(name) or after[name]).group, before.get(name), after.get(name), episodes=True
        )
        for name in dict.fromkeys((*before, *after))
    ]
    matching = [row for row in rows if _matches_filter(row.change, show)]
    counts = dict(Counter(row.change for row in rows))
    return ExamplesView(
        number,
        where,
        show if show in SHOW else "all",
        graded[where],
        splits,
        counts,
        slice_page(matching, page, PAGE),
        len(rows),
    )


def _matches_filter(change: Change, show: str) -> bool:
    return (
        show not in SHOW
        or show == "all"
        or change == show
        or (show == "flipped" and change in ("gained", "lost"))
    )


def _list_graded(run: LiveRunStatus, split: Split) -> tuple[int, ...]:
    """Return the submissions with answers on a split, by their files: few have held-out answers."""
    paths = run.view.paths
    return tuple(
        each.id
        for each in run.view.submissions
        if paths.submission_paths(each.id).results_file(split).exists()
    )


@dataclass(frozen=True)
class ModelAnswer:
    """One model's answer."""

    submission: int
    result: ExampleResult
    step: int
    """Turn of the episode that is shown; 0 is the start."""


@dataclass(frozen=True)
class ExampleView:
    example: str
    split: Split
    sides: tuple[ModelAnswer, ...]
    """Answers of the untouched model and of the submission."""
    last: int
    """Last step of the longer episode."""
    step: int
    submission: int


def read_example_view(
    run: LiveRunStatus, submission: int, split: Split, example: str, step: int | None
) -> ExampleView:
    sides = []
    for number in dict.fromkeys((0, submission)):
        result = next(
            (each for each in read_answers(run.view.paths, number, split) if each.id == example), None
        )
        if result:
            sides.append((number, result))
    if not sides:
        raise UserError(f"Example {example!r} has no answer on the {split} split.")
    last = max(max(0, len(result.trajectory) - 1) for _, result in sides)
    at = min(max(0, step if step is not None else last), last)
    return ExampleView(
        example,
        split,
        tuple(
            ModelAnswer(number, result, min(at, max(0, len(result.trajectory) - 1)))
            for number, result in sides
        ),
        last,
        at,
        submission,
    )


LOG_BYTES = 1 << 20
Moment = Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False)]
"""Seconds of the agent's time."""


def add_single_run_routes(app: FastAPI, dashboard: Dashboard) -> None:
    def read_status(name: str) -> run_status.LiveRunStatus:
        return run_status.read_live_status(run_status.find_run(dashboard.runs, name))

    @app.get("/runs/{name}")
    def overview_page(name: str) -> Response:
        return render_response(
            "run.html.jinja", read_status(name), tab="overview", analysis=dashboard.get_analysis(name)
        )

    @app.get("/runs/{name}/now")
    def status_fragment(name: str) -> Response:
        return render_response("now.jinja", read_status(name))

    @app.get("/runs/{name}/analysis")
    def overview_analysis_fragment(name: str) -> Response:
        return render_response("analysis.jinja", analysis=dashboard.get_analysis(name))

    @app.get("/runs/{name}/timeline")
    def timeline_page(name: str, since: Moment = 0.0, until: Moment = 0.0) -> Response:
        window = dashboard.get_time_window(name, since, until)
        return render_response(
            "timeline.html.jinja", read_status(name), tab="timeline", analysis=window, at=(since, until)
        )

    @app.get("/runs/{name}/timeline/analysis")
    def timeline_analysis_fragment(name: str, since: Moment = 0.0, until: Moment = 0.0) -> Response:
        return render_response("analysis.jinja", analysis=dashboard.get_time_window(name, since, until))

    @app.get("/runs/{name}/code")
    def code_page(name: str, at: int | None = None, since: int | None = None, file: str = "") -> Response:
        status = read_status(name)
        code_view = read_code_view(status.view.paths, at, since, file)
        return render_response("code.html.jinja", status, tab="code", code=code_view)

    @app.get("/runs/{name}/examples")
    def examples_page(
        name: str, submission: int | None = None, split: Split = "heldout", show: str = "all", page: int = 1
    ) -> Response:
        status = read_status(name)
        listing = read_examples_view(status, submission, split, show, page)
        return render_response("examples.html.jinja", status, tab="examples", listing=listing)

    @app.get("/runs/{name}/examples/{example:path}")
    def example_page(
        name: str, example: str, submission: int = 0, split: Split = "heldout", step: int | None = None
    ) -> Response:
        status = read_status(name)
        detail = read_example_view(status, submission, split, example, step)
        return render_response("example.html.jinja", status, tab="examples", detail=detail)

    @app.get("/runs/{name}/transcript")
    def transcript_page(name: str, page: int = 1) -> Response:
        status = read_status(name)
        transcript = read_transcript(status.view.paths)
        part = slice_page(transcript.steps if transcript else (), page, STEPS)
        return render_response(
            "transcript.html.jinja", status, tab="transcript", transcript=transcript, part=part
        )

    @app.get("/runs/{name}/log")
    def log_page(name: str) -> Response:
        status = read_status(name)
        text = run_status.read_file_tail(status.view.paths.agent_log, LOG_BYTES)
        return render_response(
            "log.html.jinja", status, tab="log", text=text, whole=len(text) < LOG_BYTES // 2
        )

    @app.get("/runs/{name}/events")
    async def run_events(name: str, request: Request) -> Response:
        return state.stream_changes(dashboard.watch_run(name), request)
