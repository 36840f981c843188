"""What a model answered, example by example, beside the untouched model; and episodes step by step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from agent2rl.core.errors import UserError
from agent2rl.core.records import ExampleResult, Split
from agent2rl.dashboard.run_status import LiveRunStatus, read_answers
from agent2rl.report.example_changes import Change, ExampleChange

T = TypeVar("T")
PAGE, STEPS = 50, 40
SPLITS: tuple[Split, ...] = ("heldout", "feedback")
SHOW = ("all", "flipped", "gained", "lost", "right", "wrong")


@dataclass(frozen=True)
class PageSlice(Generic[T]):
    """A page of something long."""

    items: Sequence[T]
    page: int
    pages: int
    first: int
    """The number of its first item, from 1."""


def slice_page(items: Sequence[T], page: int, size: int) -> PageSlice[T]:
    pages = max(1, -(-len(items) // size))
    at = min(max(1, page), pages)
    return PageSlice(items[(at - 1) * size : at * size], at, pages, (at - 1) * size + 1)


@dataclass(frozen=True)
class ExamplesView:
    submission: int | None
    """None: only the untouched model has answers."""
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
    wanted = [row for row in rows if _matches_filter(row.change, show)]
    counts = dict(Counter(row.change for row in rows))
    return ExamplesView(
        number,
        where,
        show if show in SHOW else "all",
        graded[where],
        splits,
        counts,
        slice_page(wanted, page, PAGE),
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
    """Held-out answers there are of few, so the files are what tells."""
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
    """The turn of the episode that is shown; 0 is the start."""


@dataclass(frozen=True)
class ExampleView:
    example: str
    split: Split
    sides: tuple[ModelAnswer, ...]
    """The untouched model's, and the submission's."""
    last: int
    """The last step of the longer episode."""
    step: int
    submission: int


def read_example_view(
    run: LiveRunStatus, submission: int, split: Split, example: str, step: int | None
) -> ExampleView:
    sides = []
    for number in dict.fromkeys((0, submission)):
        found = next(
            (each for each in read_answers(run.view.paths, number, split) if each.id == example), None
        )
        if found:
            sides.append((number, found))
    if not sides:
        raise UserError(f"There is no answer to {example!r} on the {split} split.")
    last = max(max(0, len(found.trajectory) - 1) for _, found in sides)
    at = min(max(0, step if step is not None else last), last)
    return ExampleView(
        example,
        split,
        tuple(
            ModelAnswer(number, found, min(at, max(0, len(found.trajectory) - 1))) for number, found in sides
        ),
        last,
        at,
        submission,
    )
