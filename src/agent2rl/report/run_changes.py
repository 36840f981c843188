"""What a run changed, for pages: lines of code, no more of them than anybody reads, and the examples
before and after.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent2rl.core.grading_records import ExampleResult, Split
from agent2rl.report import formatting
from agent2rl.report.report_data import Answers, ReportData

# Changes of code as lines that a page can colour, no more of them than anybody reads.

LINES = 400
"""Of one attempt."""
ALL_LINES = 8000
CHARACTERS = 400
"""Of a line."""

Kind = Literal["file", "hunk", "added", "removed", "same"]


@dataclass(frozen=True)
class CodeDiff:
    lines: tuple[tuple[Kind, str], ...]
    added: int
    removed: int
    left_out: int
    """Lines."""


def parse_diffs(diffs: Mapping[int, str]) -> dict[int, CodeDiff]:
    """By attempt. The last ones are cut shorter where all together are too long."""
    found: dict[int, CodeDiff] = {}
    left = ALL_LINES
    for number in sorted(diffs):
        found[number] = _parse_diff(diffs[number], min(LINES, left))
        left -= len(found[number].lines)
    return found


def _parse_diff(text: str, most: int) -> CodeDiff:
    """A header ends where a hunk begins: a removed line may begin with dashes, too."""
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


# Examples before and after: what the untouched model said to each, and what the best submission says.

MOST_EXAMPLES = 300
"""Examples on a page."""
OUTPUT_CHARACTERS = 1200
TRAJECTORIES = 60
"""Examples whose episodes are on the page."""
TURNS = 40
TURN_CHARACTERS = 300
DIFFERENT = 1e-9
RIGHT = 0.5
"""From this score on."""

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
        """Flipped for the better or the worse, or right or wrong as before."""
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
    """What `after` is; None where there is only the untouched model."""
    rows: tuple[ExampleChange, ...]
    counts: dict[Change, int]
    """Of all, not of the rows alone."""
    total: int
    shown_episodes: int
    all_episodes: int


def compare_examples(data: ReportData) -> ExampleComparison | None:
    """None where no answers were kept. Where there are too many, those that flipped stay."""
    chosen = _choose_answers(data)
    split, submission, before, after = chosen
    if not before and not after:
        return None
    olds, news = {one.id: one for one in before}, {one.id: one for one in after}
    pairs = [(olds.get(name), news.get(name)) for name in dict.fromkeys((*olds, *news))]
    rows = [_build_row(old, new) for old, new in pairs]
    kept = _select_rows(rows)
    told = [row for row in kept if _has_episode(row)][:TRAJECTORIES]
    names = {row.id for row in told}
    return ExampleComparison(
        split=split,
        submission=submission,
        rows=tuple(ExampleChange(row.id, row.group, row.before, row.after, row.id in names) for row in kept),
        counts=dict(Counter(row.change for row in rows)),
        total=len(rows),
        shown_episodes=len(told),
        all_episodes=sum(map(_has_episode, rows)),
    )


def _build_row(before: ExampleResult | None, after: ExampleResult | None) -> ExampleChange:
    one = after or before
    assert one
    return ExampleChange(one.id, one.group, before, after, False)


def _select_rows(rows: Sequence[ExampleChange]) -> list[ExampleChange]:
    """In their order."""
    places = sorted(range(len(rows)), key=lambda at: (rows[at].change not in ("gained", "lost"), at))
    return [rows[at] for at in sorted(places[:MOST_EXAMPLES])]


def _has_episode(row: ExampleChange) -> bool:
    return any(one and one.trajectory for one in (row.before, row.after))


def _choose_answers(
    data: ReportData,
) -> tuple[str, int | None, Sequence[ExampleResult], Sequence[ExampleResult]]:
    """The split that ranks, where both have answers on it; else feedback, else whatever there is."""
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
    """The chosen submission; while a run goes, the one with the highest score so far."""
    if data.view.result and data.view.result.best:
        return data.view.result.best.id
    own = [one for one in data.view.submissions if one.lineage not in ("copied", "foreign")]
    scored = [(one.score.value, -one.id) for one in own if one.score]
    return -max(scored)[1] if scored else None
