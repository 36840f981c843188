"""report.html: one page that needs nothing but itself.

Whatever an agent or a model wrote is escaped, and what would hide or turn it around is spelled. Beyond that,
the page's own policy lets no script run but the one that is shipped, and nothing be fetched from anywhere.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from agent2rl import __version__
from agent2rl.analysis.findings import Attempt
from agent2rl.report import diffs, examples, headline, metrics, tables, words
from agent2rl.report.checks import checks
from agent2rl.report.colours import COLOURS
from agent2rl.report.inline import inline
from agent2rl.report.setup import setup
from agent2rl.report.shown import Shown
from agent2rl.report.sparks import spark

FOLDER = Path(__file__).with_name("templates")
MOST_EVIDENCE = 3000
NARROW = ".narrow"
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
    script, style = (_file(name) for name in ("report.js", "report.css"))
    anchors = Anchors(shown)
    return (
        _environment(anchors)
        .get_template("report.html.jinja")
        .render(
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
            figures=_figures(figures),
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
            version=__version__,
            style=Markup(style),
            script=Markup(script),
            hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def _environment(anchors: Anchors) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_spelled,
    )
    environment.filters |= {
        "cites": anchors.links,
        "prose": anchors.prose,
        "chance": words.chance,
        "clock": words.clock,
        "contents": _contents,
        "cut": words.cut,
        "duration": words.duration,
        "many": tables.many,
        "played": tables.played,
        "points": words.points,
        "said": words.value,
        "scored": tables.scored,
        "share": words.share,
        "size": tables.size,
        "spark": spark,
        "used": tables.used,
    }
    return environment


def _contents(attempt: Attempt) -> str:
    """What a row of the table unfolds."""
    counts = {
        "setting": len(attempt.settings),
        "curve": len(attempt.curves),
        "finding": len(attempt.failures),
        "changed file": attempt.changed,
    }
    return " · ".join(tables.many(count, noun) for noun, count in counts.items() if count) or "details"


def _spelled(value: Any) -> Any:
    """Every text that a template prints comes through here."""
    return words.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _figures(given: Mapping[str, str]) -> dict[str, tuple[Markup, Markup]]:
    """Each for a desk and for a telephone."""
    variables = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    return {
        name: (
            inline(name, svg, variables),
            inline(f"{name}-narrow", given.get(name + NARROW, svg), variables),
        )
        for name, svg in given.items()
        if not name.endswith(NARROW)
    }


def _groups(shown: Shown) -> list[tuple[str, float | None, float | None]]:
    """Each kind of example before and after, where there are kinds."""
    gain = shown.findings.gain
    if gain and gain.groups:
        return [(name, before, after) for name, (before, after) in sorted(gain.groups.items())]
    pair = headline.before_and_after(shown)
    before = pair[0].groups if pair else shown.view.baseline.groups if shown.view.baseline else {}
    after = pair[1].groups if pair else {}
    return [(name, before.get(name), after.get(name)) for name in sorted({*before, *after})]


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
