"""Renders report.md: a shorter form of the page, for terminals and Markdown viewers."""

import re
from collections.abc import Iterable, Sequence

from agent2rl.core.audit_records import FLAG_NAMES
from agent2rl.core.grading_records import Contamination
from agent2rl.record.reader import RunView
from agent2rl.report import descriptions, formatting, generalisation_table, headline, sections, tables
from agent2rl.report.report_data import ReportData
from agent2rl.report.sections import run_integrity_checks

# Figures of a report: those that have data.


def list_figure_names(data: ReportData) -> list[str]:
    """Return the figure names in the order of the page, without drawing any."""
    line, started = data.timeline, data.timeline.started is not None
    trained = bool(sections.build_training_rows(data, drawn=True))
    has_data = {
        "scores": started and any(one.score for one in data.view.submissions),
        "training": trained,
        "curves": not trained
        and any(
            value is not None
            for attempt in data.findings.attempts
            for curve in attempt.curves
            for _, value in curve.points
        ),
        "timeline": bool(line.spans),
        "rollouts": any(each.played.episodes for each in line.played),
        "tokens": started and any(each.tokens for each in data.usage),
        "resources": bool(line.samples),
    }
    return [name for name, drawable in has_data.items() if drawable]


CELL, LINE = 300, 4000
"""Longest cell and longest line, in characters."""
ROWS = 200
ENTITIES = {"&": "&amp;", "<": "&lt;", "|": "&#124;", "[": "&#91;", "`": "&#96;"}
PLAIN = re.compile(r"&#91;([E0-9.,;+−\- ]+)\](?![:(])")
"""Brackets around an interval or evidence ids, which cannot form a link."""
CAPTIONS = {
    "scores": "Scores of the submissions over time",
    "training": "Metrics of the trainings over steps",
    "curves": "Training curves by attempt",
    "timeline": "What the agent did when",
    "rollouts": "Episodes played and won",
    "tokens": "Tokens and cost",
    "resources": "Resource usage",
}


def page(data: ReportData) -> str:
    parts = [
        [
            f"# {_escape_cell(data.view.paths.run_id)}",
            "",
            _escape_cell(headline.build_sentence(data), LINE),
        ],
        [f"- **{_escape_cell(flag.text)}**" for flag in headline.build_flags(data)],
        [*_render_table(("", ""), tables.build_headline_rows(data.view))],
        ["## What happened", "", *_render_prose(data.findings.summary)],
        _render_llm_summary(data),
        ["## Submissions", "", *_render_figure(data, "scores"), *_render_submissions(data.view)],
        _render_trainings(data),
        ["## Attempts", "", *_render_attempts(data), *_render_figure(data, "curves")],
        _render_kinds(data.view),
        _render_generalisation(data),
        _render_panel(data.view),
        _render_claims(data),
        *(
            [name, "", *_render_figure(data, key)]
            for key, name in _HEADINGS.items()
            if key in list_figure_names(data)
        ),
        [
            "## Process metrics",
            "",
            *_render_table(("metric", "value", "meaning"), sections.build_metric_rows(data.findings.metrics)),
        ],
        ["## Compliance and integrity", "", *_render_checks(data)],
        _render_contamination(data.view),
        _render_audit(data.view),
        _render_evidence(data),
    ]
    return "\n\n".join("\n".join(part).rstrip("\n") for part in parts if part) + "\n"


_HEADINGS = {
    "timeline": "## Timeline",
    "rollouts": "## Rollouts",
    "tokens": "## Tokens and cost",
    "resources": "## Resources",
}


def _render_prose(text: str) -> list[str]:
    lines = [_escape_cell(line, LINE) for line in text.split("\n")]
    return lines if any(lines) else ["Nothing to report yet."]


def _render_audit(view: RunView) -> list[str]:
    """Render the flags of the last audit with the quotes that were found in the record."""
    audit = view.audit
    if audit is None or not audit.flags:
        return []
    lines = ["## Audit", "", f"By {_escape_cell(audit.judge)}. It may be wrong, and changes no score.", ""]
    for flag in audit.flags:
        by = f"{flag.votes} of {audit.votes} votes" if flag.votes else "by rule"
        said = " ".join(_escape_cell(text) for text in flag.statements)
        lines.append(f"- **{FLAG_NAMES[flag.kind]}** ({by}). {said}".rstrip())
        lines += [
            f"  - {_escape_cell(quote.document)}, line {quote.line}: {_escape_cell(quote.text, LINE)}"
            for quote in flag.quotes
        ]
    return lines


def _render_llm_summary(data: ReportData) -> list[str]:
    summary = data.llm_summary
    if summary is None:
        return []
    lines = ["### By a language model", "", f"Written by {_escape_cell(summary.model)}; it may be wrong.", ""]
    lines += [
        f"> {_escape_cell(line, LINE)}" for line in formatting.truncate_text(summary.text, 6000).split("\n")
    ]
    return [*lines, "", *(f"- {_escape_cell(problem)}" for problem in summary.problems)]


def _render_submissions(view: RunView) -> list[str]:
    rows = tables.build_submission_rows(view)
    if not rows:
        return ["None."]
    lines = [*_render_table(tables.SUBMISSION_COLUMNS, rows)]
    lines += ["", "\\* chosen on the feedback split. Scores are percentages.", ""]
    return lines + [
        f"- {number}: {_escape_cell(message, LINE)}" for number, message in tables.list_messages(view)
    ]


def _render_attempts(data: ReportData) -> list[str]:
    if not data.findings.attempts:
        return ["None."]
    rows = [
        (
            str(each.number),
            f"{formatting.format_clock(each.began)} to {formatting.format_clock(each.ended)}",
            f"{each.route.name} ({formatting.format_share(each.route.confidence)})" if each.route else "",
            formatting.format_points(each.gain) if each.gain is not None else "",
            each.outcome,
            "; ".join(
                f"{one.kind}: {one.message} {_format_citations(one.evidence)}" for one in each.failures[:3]
            ),
            ", ".join(f"{one.name} {formatting.format_setting(one.value, 40)}" for one in each.settings[:8]),
        )
        for each in data.findings.attempts
    ]
    return [
        *_render_table(("#", "when", "route", "gain", "outcome", "what went wrong", "settings"), rows),
        "",
    ]


def _render_trainings(data: ReportData) -> list[str]:
    rows = sections.build_training_rows(data)
    if not rows:
        return []
    table = _render_table(sections.TRAINING_COLUMNS, [row.cells for row in rows])
    return ["## Training", "", *_render_figure(data, "training"), *table]


def _render_kinds(view: RunView) -> list[str]:
    rows = tables.build_kind_rows(view)
    return ["## By kind of example", "", *_render_table(tables.KIND_COLUMNS, rows)] if rows else []


def _render_panel(view: RunView) -> list[str]:
    rows = tables.build_panel_rows(view.result)
    title = ["## Effect on other tasks (regression panel)", ""]
    return [*title, *_render_table(tables.PANEL_COLUMNS, rows)] if rows else []


def _render_generalisation(data: ReportData) -> list[str]:
    found = data.findings.generalisation
    rows = generalisation_table.build_generalisation_rows(found)
    table = [*_render_table(generalisation_table.COLUMNS, rows), ""] if rows else []
    notes = [
        f"- {_escape_cell(note, LINE)}" for note in generalisation_table.build_generalisation_notes(found)
    ]
    return ["## Generalisation", "", *table, *notes] if notes else []


def _render_claims(data: ReportData) -> list[str]:
    if not data.claims or not data.claims.claims:
        return []
    against = data.findings.contradictions
    rows = [
        (
            str(claim.attempt),
            claim.route,
            claim.what,
            f"{claim.score:.2f}" if claim.score is not None else "",
            "; ".join(
                f"CONTRADICTED: claimed {one.claimed}, recorded {one.recorded} "
                f"{_format_citations(one.evidence)}"
                for one in against
                if one.attempt == claim.attempt
            ),
        )
        for claim in data.claims.claims
    ]
    return [
        "## The agent's own report",
        "",
        *_render_table(("#", "route", "what it did", "score", "record"), rows),
    ]


def _render_checks(data: ReportData) -> Iterable[str]:
    rows = [
        (each.name, each.verdict, f"{each.text} {_format_citations(each.evidence)}")
        for each in run_integrity_checks(data)
    ]
    return _render_table(("check", "verdict", "why"), rows)


def _render_contamination(view: RunView) -> list[str]:
    report: Contamination | None = view.contamination
    if not report or not report.done:
        return []
    lines = ["## Evaluation data in the workspace", "", f"{descriptions.describe_contamination(report)}.", ""]
    lines.append(
        f"A passage counts if it holds at least {report.share:.0%} of the {report.ngram_words}-word "
        f"sequences of an example's prompt or answer, or {report.run_words} words in a row. "
        f"{report.unchecked} of {report.examples} examples cannot be searched for. "
        f"{formatting.format_bytes(report.tensor_bytes)} of model weights were skipped."
    )
    for columns, rows in (
        (tables.FINDING_COLUMNS, tables.build_finding_rows(view)),
        (tables.LEFT_OUT_COLUMNS, tables.build_left_out_rows(view)),
    ):
        if rows:
            lines += ["", *_render_table(columns, rows)]
    if report.found > len(report.findings):
        lines += ["", f"Showing the first {len(report.findings)} of {report.found}."]
    return lines


def _render_evidence(data: ReportData) -> list[str]:
    rows = [(each.id, each.kind, each.where, each.text) for each in data.findings.evidence]
    return ["## Evidence", "", *_render_table(("", "kind", "where", "what"), rows)] if rows else []


def _render_figure(data: ReportData, name: str) -> list[str]:
    return [f"![{CAPTIONS[name]}](figures/{name}.svg)", ""] if name in list_figure_names(data) else []


def _format_citations(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]" if names else ""


def _render_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    yield _render_row(columns)
    yield "|" + "---|" * len(columns)
    yield from map(_render_row, rows[:ROWS])
    if len(rows) > ROWS:
        yield _render_row([f"{len(rows) - ROWS} more", *[""] * (len(columns) - 1)])


def _render_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape_cell(cell) for cell in cells) + " |"


def _escape_cell(cell: str, most: int = CELL) -> str:
    """Return one line in which untrusted text cannot form markup, a tag, a link or the end of a cell."""
    line = formatting.escape_invisible(" ".join(formatting.truncate_text(cell, most).split()))
    # `&` is the first, or else it would be replaced in the other entities too.
    for mark, entity in ENTITIES.items():
        line = line.replace(mark, entity)
    return PLAIN.sub(r"[\1]", line)
