"""Renders report.html, a self-contained page, with sparklines for the training curves of each attempt."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from agent2rl.analysis.findings import AttemptFindings, PrintedCurve
from agent2rl.core.audit_records import FLAG_NAMES
from agent2rl.report import (
    descriptions,
    formatting,
    generalisation_table,
    headline,
    page_templates,
    run_changes,
    sections,
    tables,
)
from agent2rl.report.report_data import ReportData
from agent2rl.report.sections import build_setup_rows, run_integrity_checks

# Sparklines of training curves, for the table of attempts.

SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 220.0, 56.0
SPARKLINE_POINTS = 110


@dataclass(frozen=True)
class Sparkline:
    name: str
    where: str
    line: str
    """Points of an SVG polyline."""
    lost: float | None
    """Where the curve first is not a number; None if it never is."""
    first: str
    last: str
    low: str
    high: str
    steps: str


def build_sparkline(curve: PrintedCurve) -> Sparkline | None:
    """Build the sparkline of a curve, or return None if it has no numbers."""
    known = [(step, value) for step, value in curve.points if value is not None]
    if not known:
        return None
    values = [value for _, value in known]
    low, high = min(values), max(values)
    start, end = curve.points[0][0], curve.points[-1][0]
    sampled = (
        known
        if len(known) <= SPARKLINE_POINTS
        else [known[at * (len(known) - 1) // (SPARKLINE_POINTS - 1)] for at in range(SPARKLINE_POINTS)]
    )
    places = [
        (
            _scale_step(step, start, end),
            SPARKLINE_HEIGHT - _scale_to_unit(value, low, high) * SPARKLINE_HEIGHT,
        )
        for step, value in sampled
    ]
    lost = next((step for step, value in curve.points if value is None), None)
    return Sparkline(
        name=curve.name,
        where=curve.where,
        line=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
        lost=None if lost is None else round(_scale_step(lost, start, end), 1),
        first=formatting.format_number(values[0]),
        last=formatting.format_number(values[-1]),
        low=formatting.format_number(low),
        high=formatting.format_number(high),
        steps=f"{formatting.format_number(start)} to {formatting.format_number(end)}",
    )


def _scale_step(step: float, start: float, end: float) -> float:
    return _scale_to_unit(step, start, end) * SPARKLINE_WIDTH


def _scale_to_unit(value: float, low: float, high: float) -> float:
    """Scale to 0 to 1; 0.5 if the range is empty."""
    return (value - low) / (high - low) if high > low else 0.5


MOST_EVIDENCE = 3000
CITED = re.compile(r"\[(E\d+(?:[,;]\s*E\d+)*)\]")
SECTIONS = {
    "headline": "Headline",
    "scores": "Score trajectory",
    "training": "Training",
    "story": "What happened",
    "attempts": "Attempts",
    "timeline": "Timeline",
    "results": "Results",
    "rollouts": "Rollouts",
    "tokens": "Tokens and cost",
    "resources": "Resources",
    "metrics": "Process metrics",
    "integrity": "Integrity",
    "evidence": "Evidence",
    "making": "How this was made",
}
TONES = {
    "improved": "good",
    "no-gain": "plain",
    "worse": "bad",
    "foreign": "bad",
    "copied": "warn",
    "rejected": "bad",
    "failed": "bad",
    "expired": "plain",
    "not-submitted": "plain",
    "waiting": "plain",
}


class EvidenceLinks:
    """Renders citations: as links if the evidence is on the page, else as plain text."""

    def __init__(self, data: ReportData) -> None:
        pieces = data.findings.evidence[:MOST_EVIDENCE]
        self._places = {piece.id: place for place, piece in enumerate(pieces, start=1)}

    def link_evidence(self, name: str) -> Markup:
        place, label = (
            self._places.get(name),
            escape(formatting.escape_invisible(formatting.truncate_text(name, 12))),
        )
        if place is None:
            return Markup('<span class="cite gone" title="not on this page">{}</span>').format(label)
        return Markup('<a class="cite" href="#evidence-{}">{}</a>').format(place, label)

    def link_all_evidence(self, names: tuple[str, ...]) -> Markup:
        return Markup(" ").join(map(self.link_evidence, dict.fromkeys(names)))

    def render_prose(self, text: str) -> list[Markup]:
        """Split a text into paragraphs, with citations as links."""
        return [self._render_paragraph(part) for part in re.split(r"\n\s*\n", text) if part.strip()]

    def _render_paragraph(self, text: str) -> Markup:
        paragraph, last = Markup(), 0
        for match in CITED.finditer(text):
            paragraph += escape(formatting.escape_invisible(text[last : match.start()]))
            paragraph += self.link_all_evidence(tuple(re.split(r"[,;]\s*", match[1])))
            last = match.end()
        return paragraph + escape(formatting.escape_invisible(text[last:]))


def page(data: ReportData, figures: Mapping[str, str]) -> str:
    """Render the page. `figures` holds SVGs by name; those for narrow screens end in `.narrow`."""
    anchors = EvidenceLinks(data)
    filters: dict[str, Callable[..., Any]] = {
        "cites": anchors.link_all_evidence,
        "prose": anchors.render_prose,
        "contents": _describe_contents,
        "played": descriptions.describe_rollouts,
        "scored": formatting.format_score,
        "spark": build_sparkline,
        "used": descriptions.describe_usage,
    }
    return page_templates.render_page(
        "report.html.jinja",
        filters,
        data=data,
        view=data.view,
        findings=data.findings,
        result=data.view.result,
        title=headline.build_title(data),
        sentence=headline.build_sentence(data),
        tiles=headline.build_tiles(data),
        flags=headline.build_flags(data),
        notes=headline.collect_notes(data),
        submissions={one.id: one for one in data.view.submissions},
        figures=page_templates.inline_figures(figures),
        diffs=run_changes.parse_diffs(data.diffs),
        compared=run_changes.compare_examples(data),
        limits=run_changes,
        checks=run_integrity_checks(data),
        flag_names=FLAG_NAMES,
        metrics=sections.build_metric_rows(data.findings.metrics),
        activities=sections.build_activity_rows(data.findings.time),
        trainings=sections.build_training_rows(data),
        setup=build_setup_rows(data),
        rollout_rows=tables.build_rollout_rows(data.rollouts) if data.rollouts else [],
        groups=_compare_groups(data),
        generalisation=generalisation_table.build_generalisation_rows(data.findings.generalisation),
        generalisation_notes=generalisation_table.build_generalisation_notes(data.findings.generalisation),
        panel=tables.build_panel_rows(data.view.result),
        sections=SECTIONS.items(),
        tones=TONES,
        most_evidence=MOST_EVIDENCE,
    )


def _describe_contents(attempt: AttemptFindings) -> str:
    """Summarize what the details of an attempt contain."""
    counts = {
        "setting": len(attempt.settings),
        "curve": len(attempt.curves),
        "finding": len(attempt.failures),
        "changed file": attempt.changed,
    }
    return (
        " · ".join(formatting.pluralize(count, noun) for noun, count in counts.items() if count) or "details"
    )


def _compare_groups(data: ReportData) -> list[tuple[str, float | None, float | None]]:
    """Return the scores before and after of each kind of example, for tasks that have kinds."""
    gain = data.findings.gain
    if gain and gain.groups:
        return [(name, before, after) for name, (before, after) in sorted(gain.groups.items())]
    pair = headline.find_before_and_after(data)
    before = pair[0].groups if pair else data.view.baseline.groups if data.view.baseline else {}
    after = pair[1].groups if pair else {}
    return [(name, before.get(name), after.get(name)) for name in sorted({*before, *after})]
