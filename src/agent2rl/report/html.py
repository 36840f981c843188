"""report.html: one page that needs nothing but itself."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup, escape

from agent2rl.analysis.findings import Attempt
from agent2rl.report import diffs, examples, headline, metrics, sheets, tables, words
from agent2rl.report.checks import checks
from agent2rl.report.setup import setup
from agent2rl.report.shown import Shown
from agent2rl.report.sparks import spark

MOST_EVIDENCE = 3000
CITED = re.compile(r"\[(E\d+(?:[,;]\s*E\d+)*)\]")
SECTIONS = {
    "headline": "Headline",
    "scores": "Score trajectory",
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


class Anchors:
    """Links to evidence that is on the page; what is not is named without one."""

    def __init__(self, shown: Shown) -> None:
        pieces = shown.findings.evidence[:MOST_EVIDENCE]
        self._places = {piece.id: place for place, piece in enumerate(pieces, start=1)}

    def link(self, name: str) -> Markup:
        place, said = self._places.get(name), escape(words.visible(words.cut(name, 12)))
        if place is None:
            return Markup('<span class="cite gone" title="not on this page">{}</span>').format(said)
        return Markup('<a class="cite" href="#evidence-{}">{}</a>').format(place, said)

    def links(self, names: tuple[str, ...]) -> Markup:
        return Markup(" ").join(map(self.link, dict.fromkeys(names)))

    def prose(self, text: str) -> list[Markup]:
        """Paragraphs whose citations are links."""
        return [self._paragraph(part) for part in re.split(r"\n\s*\n", text) if part.strip()]

    def _paragraph(self, text: str) -> Markup:
        found, last = Markup(), 0
        for match in CITED.finditer(text):
            found += escape(words.visible(text[last : match.start()]))
            found += self.links(tuple(re.split(r"[,;]\s*", match[1])))
            last = match.end()
        return found + escape(words.visible(text[last:]))


def page(shown: Shown, figures: Mapping[str, str]) -> str:
    """`figures` holds SVG texts by name, those for telephones with `.narrow` behind it."""
    anchors = Anchors(shown)
    filters: dict[str, Callable[..., Any]] = {
        "cites": anchors.links,
        "prose": anchors.prose,
        "contents": _contents,
        "played": tables.played,
        "scored": tables.scored,
        "spark": spark,
        "used": tables.used,
    }
    return sheets.render(
        "report.html.jinja",
        filters,
        shown=shown,
        view=shown.view,
        findings=shown.findings,
        result=shown.view.result,
        title=headline.title(shown),
        sentence=headline.sentence(shown),
        tiles=headline.tiles(shown),
        flags=headline.flags(shown),
        notes=headline.notes(shown),
        submissions={one.id: one for one in shown.view.submissions},
        figures=sheets.figures(figures),
        diffs=diffs.read(shown.diffs),
        compared=examples.compare(shown),
        limits=examples,
        checks=checks(shown),
        metrics=metrics.rows(shown.findings.metrics),
        activities=metrics.activities(shown.findings.time),
        setup=setup(shown),
        groups=_groups(shown),
        sections=SECTIONS.items(),
        tones=TONES,
        most_evidence=MOST_EVIDENCE,
    )


def _contents(attempt: Attempt) -> str:
    """What a row of the table unfolds."""
    counts = {
        "setting": len(attempt.settings),
        "curve": len(attempt.curves),
        "finding": len(attempt.failures),
        "changed file": attempt.changed,
    }
    return " · ".join(tables.many(count, noun) for noun, count in counts.items() if count) or "details"


def _groups(shown: Shown) -> list[tuple[str, float | None, float | None]]:
    """Each kind of example before and after, where there are kinds."""
    gain = shown.findings.gain
    if gain and gain.groups:
        return [(name, before, after) for name, (before, after) in sorted(gain.groups.items())]
    pair = headline.before_and_after(shown)
    before = pair[0].groups if pair else shown.view.baseline.groups if shown.view.baseline else {}
    after = pair[1].groups if pair else {}
    return [(name, before.get(name), after.get(name)) for name in sorted({*before, *after})]
