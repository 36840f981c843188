"""report.md: the same as the page, shorter, for terminals and for wherever Markdown is read."""

import re
from collections.abc import Iterable, Sequence

from agent2rl.core.records import Contamination
from agent2rl.report import drawn, headline, metrics, tables, words
from agent2rl.report.checks import checks
from agent2rl.report.shown import Shown
from agent2rl.store.reader import RunView

CELL, LINE = 300, 4000
"""Characters of a cell and of a line, at most."""
ROWS = 200
ENTITIES = {"&": "&amp;", "<": "&lt;", "|": "&#124;", "[": "&#91;", "`": "&#96;"}
PLAIN = re.compile(r"&#91;([E0-9.,;+−\- ]+)\](?![:(])")
"""Brackets round an interval or numbers of evidence, which make no link."""
CAPTIONS = {
    "scores": "Scores of the submissions over time",
    "curves": "What trainings printed, by attempt",
    "timeline": "What the agent did when",
    "rollouts": "Episodes played and won",
    "tokens": "Tokens and cost",
    "resources": "What was used of the machine",
}


def page(shown: Shown) -> str:
    parts = [
        [f"# {_text(shown.view.paths.run_id)}", "", _text(headline.sentence(shown), LINE)],
        [f"- **{_text(flag.text)}**" for flag in headline.flags(shown)],
        [*_table(("", ""), tables.headline(shown.view))],
        ["## What happened", "", *_prose(shown.findings.summary)],
        _by_a_model(shown),
        ["## Submissions", "", *_figure(shown, "scores"), *_submissions(shown.view)],
        ["## Attempts", "", *_attempts(shown), *_figure(shown, "curves")],
        _kinds(shown.view),
        _claims(shown),
        *([name, "", *_figure(shown, key)] for key, name in _HEADINGS.items() if key in drawn.names(shown)),
        [
            "## Process metrics",
            "",
            *_table(("metric", "value", "meaning"), metrics.rows(shown.findings.metrics)),
        ],
        ["## Compliance and integrity", "", *_checks(shown)],
        _contamination(shown.view),
        _evidence(shown),
    ]
    return "\n\n".join("\n".join(part).rstrip("\n") for part in parts if part) + "\n"


_HEADINGS = {
    "timeline": "## Timeline",
    "rollouts": "## Rollouts",
    "tokens": "## Tokens and cost",
    "resources": "## Resources",
}


def _prose(text: str) -> list[str]:
    """Paragraphs."""
    lines = [_text(line, LINE) for line in text.split("\n")]
    return lines if any(lines) else ["Nothing is known yet."]


def _by_a_model(shown: Shown) -> list[str]:
    said = shown.llm_summary
    if said is None:
        return []
    lines = ["### By a language model", "", f"Written by {_text(said.model)}; it may be wrong.", ""]
    lines += [f"> {_text(line, LINE)}" for line in words.cut(said.text, 6000).split("\n")]
    return [*lines, "", *(f"- {_text(problem)}" for problem in said.problems)]


def _submissions(view: RunView) -> list[str]:
    rows = tables.submissions(view)
    if not rows:
        return ["None."]
    lines = [*_table(tables.SUBMISSION_COLUMNS, rows)]
    lines += ["", "\\* chosen by the feedback split. Scores are percentages.", ""]
    return lines + [f"- {number}: {_text(message, LINE)}" for number, message in tables.messages(view)]


def _attempts(shown: Shown) -> list[str]:
    if not shown.findings.attempts:
        return ["None."]
    rows = [
        (
            str(each.number),
            f"{words.clock(each.began)} to {words.clock(each.ended)}",
            f"{each.route.name} ({words.share(each.route.confidence)})" if each.route else "",
            words.points(each.gain) if each.gain is not None else "",
            each.outcome,
            "; ".join(f"{one.kind}: {one.message} {_cited(one.evidence)}" for one in each.failures[:3]),
            ", ".join(f"{one.name} {words.value(one.value, 40)}" for one in each.settings[:8]),
        )
        for each in shown.findings.attempts
    ]
    return [*_table(("#", "when", "route", "gain", "outcome", "what went wrong", "settings"), rows), ""]


def _kinds(view: RunView) -> list[str]:
    rows = tables.kinds(view)
    return ["## By kind of example", "", *_table(tables.KIND_COLUMNS, rows)] if rows else []


def _claims(shown: Shown) -> list[str]:
    if not shown.claims or not shown.claims.claims:
        return []
    against = shown.findings.contradictions
    rows = [
        (
            str(claim.attempt),
            claim.route,
            claim.what,
            f"{claim.score:.2f}" if claim.score is not None else "",
            "; ".join(
                f"CONTRADICTED: says {one.claimed}, was {one.recorded} {_cited(one.evidence)}"
                for one in against
                if one.attempt == claim.attempt
            ),
        )
        for claim in shown.claims.claims
    ]
    return ["## What the agent says", "", *_table(("#", "route", "what it did", "score", "the record"), rows)]


def _checks(shown: Shown) -> Iterable[str]:
    rows = [(each.name, each.verdict, f"{each.text} {_cited(each.evidence)}") for each in checks(shown)]
    return _table(("check", "verdict", "why"), rows)


def _contamination(view: RunView) -> list[str]:
    found: Contamination | None = view.contamination
    if not found or not found.done:
        return []
    lines = ["## Evaluation data in what the agent left", "", f"{tables.contamination(found)}.", ""]
    lines.append(
        f"A passage counts from {found.share:.0%} of the {found.ngram_words}-word sequences of an example's "
        f"prompt or answer on, or from {found.run_words} words in a row. {found.unchecked} of "
        f"{found.examples} examples cannot be looked for. "
        f"{tables.size(found.tensor_bytes)} of model weights were passed over."
    )
    for columns, rows in (
        (tables.FINDING_COLUMNS, tables.findings(view)),
        (tables.LEFT_OUT_COLUMNS, tables.left_out(view)),
    ):
        if rows:
            lines += ["", *_table(columns, rows)]
    if found.found > len(found.findings):
        lines += ["", f"The first {len(found.findings)} of {found.found} are listed."]
    return lines


def _evidence(shown: Shown) -> list[str]:
    rows = [(each.id, each.kind, each.where, each.text) for each in shown.findings.evidence]
    return ["## Evidence", "", *_table(("", "kind", "where", "what"), rows)] if rows else []


def _figure(shown: Shown, name: str) -> list[str]:
    return [f"![{CAPTIONS[name]}](figures/{name}.svg)", ""] if name in drawn.names(shown) else []


def _cited(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]" if names else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    yield _row(columns)
    yield "|" + "---|" * len(columns)
    yield from map(_row, rows[:ROWS])
    if len(rows) > ROWS:
        yield _row([f"{len(rows) - ROWS} more", *[""] * (len(columns) - 1)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _text(cell: str, most: int = CELL) -> str:
    """One line in which nothing that an agent wrote is a mark, a tag, a link or a cell's end."""
    line = words.visible(" ".join(words.cut(cell, most).split()))
    for mark, entity in ENTITIES.items():
        line = line.replace(mark, entity)
    return PLAIN.sub(r"[\1]", line)
