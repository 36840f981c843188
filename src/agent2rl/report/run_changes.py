"""What a run changed, for pages: code changes as lines, and answers to the examples before and after."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent2rl.core.grading_records import ExampleResult, Split, find_best_submission
from agent2rl.report import formatting
from agent2rl.report.report_data import Answers, ReportData

# Code changes as lines that a page can colour, cut to a readable length.

LINES = 400
"""Limit for one attempt."""
ALL_LINES = 8000
CHARACTERS = 400
"""Limit for a line."""

Kind = Literal["file", "hunk", "added", "removed", "same"]


@dataclass(frozen=True)
class CodeDiff:
    lines: tuple[tuple[Kind, str], ...]
    added: int
    removed: int
    left_out: int
    """Number of lines not shown."""


def parse_diffs(diffs: Mapping[int, str]) -> dict[int, CodeDiff]:
    """Parse the diffs by attempt. The last ones are cut if the total is too long."""
    parsed: dict[int, CodeDiff] = {}
    left = ALL_LINES
    for number in sorted(diffs):
        parsed[number] = _parse_diff(diffs[number], min(LINES, left))
        left -= len(parsed[number].lines)
    return parsed


def _parse_diff(text: str, most: int) -> CodeDiff:
    """Parse a unified diff. A header ends where a hunk begins: a removed line may begin with dashes, too."""
    lines: list[tuple[Kind, str]] = []
    counts = {"added": 0, "removed": 0}
    total, header = 0, True
    for line in text.removesuffix("\n").split("\n") if text else ():
        if line.startswith("diff --git "):
            header = True
        elif line.startswith("@@ "):
            header = False
        kind = _classify_line(line, header)
        if kind in counts:
            counts[kind] += 1
        if total < most:
            lines.append((kind, formatting.truncate_text(line, CHARACTERS)))
        total += 1
    return CodeDiff(tuple(lines), counts["added"], counts["removed"], total - len(lines))


def _classify_line(line: str, header: bool) -> Kind:
    if line.startswith("@@ "):
        return "hunk"
    if header:
        return "file"
    return "added" if line.startswith("+") else "removed" if line.startswith("-") else "same"


# Answers to each example, of the untouched model and of the best submission.

MOST_EXAMPLES = 300
"""Limit of examples on a page."""
OUTPUT_CHARACTERS = 1200
TRAJECTORIES = 60
"""Limit of examples with episodes on a page."""
TURNS = 40
TURN_CHARACTERS = 300
DIFFERENT = 1e-9
RIGHT = 0.5
"""Lowest score that counts as right."""

Change = Literal["gained", "lost", "right", "wrong"]


@dataclass(frozen=True)
class ExampleChange:
    id: str
    group: str
    before: ExampleResult | None
    after: ExampleResult | None
    episodes: bool
    """Whether its episodes are shown."""

    @property
    def change(self) -> Change:
        """Whether the example was gained or lost, or is right or wrong as before."""
        before = self.before.score + self.before.residual if self.before else None
        after = self.after.score + self.after.residual if self.after else None
        if before is not None and after is not None and abs(after - before) > DIFFERENT:
            return "gained" if after > before else "lost"
        last = after if after is not None else before
        return "right" if last is not None and last >= RIGHT else "wrong"


@dataclass(frozen=True)
class ExampleComparison:
    split: str
    submission: int | None
    """The submission that `after` belongs to; None if only the untouched model has answers."""
    rows: tuple[ExampleChange, ...]
    counts: dict[Change, int]
    """Counts of all examples, not only of the rows."""
    total: int
    shown_episodes: int
    all_episodes: int


def compare_examples(data: ReportData) -> ExampleComparison | None:
    """Compare the answers, or return None if none were kept. If there are too many, flipped ones stay."""
    split, submission, before, after = choose_answers(data)
    if not before and not after:
        return None
    olds, news = {one.id: one for one in before}, {one.id: one for one in after}
    pairs = [(olds.get(name), news.get(name)) for name in dict.fromkeys((*olds, *news))]
    rows = [_build_row(old, new) for old, new in pairs]
    selected = _select_rows(rows)
    with_episodes = [row for row in selected if _has_episode(row)][:TRAJECTORIES]
    names = {row.id for row in with_episodes}
    return ExampleComparison(
        split=split,
        submission=submission,
        rows=tuple(
            ExampleChange(row.id, row.group, row.before, row.after, row.id in names) for row in selected
        ),
        counts=dict(Counter(row.change for row in rows)),
        total=len(rows),
        shown_episodes=len(with_episodes),
        all_episodes=sum(map(_has_episode, rows)),
    )


def _build_row(before: ExampleResult | None, after: ExampleResult | None) -> ExampleChange:
    result = after or before
    assert result
    return ExampleChange(result.id, result.group, before, after, False)


def _select_rows(rows: Sequence[ExampleChange]) -> list[ExampleChange]:
    """Select the rows to show, flipped ones first, and keep their order."""
    places = sorted(range(len(rows)), key=lambda at: (rows[at].change not in ("gained", "lost"), at))
    return [rows[at] for at in sorted(places[:MOST_EXAMPLES])]


def _has_episode(row: ExampleChange) -> bool:
    return any(one and one.trajectory for one in (row.before, row.after))


def choose_answers(
    data: ReportData,
) -> tuple[str, int | None, Sequence[ExampleResult], Sequence[ExampleResult]]:
    """Choose the ranking split if both have answers on it, else feedback, else any answers there are."""
    best = _find_best(data)
    splits: list[Split] = ["heldout", "feedback"]
    if data.findings.gain and data.findings.gain.split == "test":
        parts = [data.results.get(split, {}) for split in ("feedback", "heldout")]
        return "test", best, _collect_answers(parts, 0), _collect_answers(parts, best)
    for split in splits:
        answers = data.results.get(split, {})
        if answers.get(0) and best is not None and answers.get(best):
            return split, best, answers[0], answers[best]
    for split in reversed(splits):
        answers = data.results.get(split, {})
        if any(answers.values()):
            after = answers.get(best, ()) if best is not None else ()
            return split, best if after else None, answers.get(0, ()), after
    return "feedback", None, (), ()


def _collect_answers(parts: Sequence[Answers], number: int | None) -> Sequence[ExampleResult]:
    return [one for part in parts for one in part.get(number, ())] if number is not None else ()


def _find_best(data: ReportData) -> int | None:
    """Return the chosen submission; while a run is in progress, the best so far."""
    if data.view.result and data.view.result.best:
        return data.view.result.best.id
    best = find_best_submission(data.view.submissions)
    return best.id if best else None
