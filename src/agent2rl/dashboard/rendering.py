"""Renders dashboard pages from templates. Untrusted text is escaped as in reports."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import HTMLResponse
from markupsafe import Markup

from agent2rl import __version__
from agent2rl.dashboard.run_status import LiveRunStatus, RunRow
from agent2rl.report import formatting, page_templates

FOLDER = Path(__file__).with_name("templates")
STATIC = Path(__file__).with_name("static")
NAV, END = 'aria-label="Contents">', "</nav>"
MAIN = ('<main id="main">', "</main>")
TONES = {"finished": "plain", "running": "accent", "crashed": "bad"}
GOOD = ("completed", "deadline", "budget-exhausted")


def render_template(template: str, **values: Any) -> str:
    return _ENVIRONMENT.get_template(template).render(**values, version=__version__)


def render_response(
    template: str, live: LiveRunStatus | None = None, status: int = 200, **values: Any
) -> HTMLResponse:
    """Render a page. Pages of a run also get its view and its URL."""
    if live:
        view = live.view
        values |= {"live": live, "view": view, "address": f"/runs/{quote(view.paths.run_id)}"}
    return HTMLResponse(render_template(template, status=status, **values), status)


def read_script(name: str) -> str:
    if name == "charts.js":
        return page_templates.read_chart_script()
    if name == "report.js":
        return page_templates.read_template_file(name)
    return (STATIC / name).read_text(encoding="utf-8")


def read_style() -> str:
    """Return the style sheet of reports plus that of the dashboard."""
    return page_templates.read_style() + (STATIC / "dashboard.css").read_text(encoding="utf-8")


def extract_report(text: str) -> str:
    """Return the parts of a report's page that a page of the dashboard shows: contents and main part."""
    contents = text.partition(NAV)[2].partition(END)[0]
    return f'<nav class="contents" {NAV}{contents}{END}{extract_main(text)}'


def extract_main(text: str) -> str:
    """Return the main part of a report. Untrusted text is escaped, so these tags are the report's own."""
    return text.partition(MAIN[0])[2].rpartition(MAIN[1])[0]


def render_sparkline(row: RunRow) -> Markup:
    """Render the best gain so far as a tiny line chart."""
    if not row.spark:
        return Markup("")
    values = (0.0, *row.spark)
    top = max(max(values), 1e-9)
    points = " ".join(
        f"{72 * at / max(1, len(values) - 1):.1f},{19 - 17 * max(0.0, value) / top:.1f}"
        for at, value in enumerate(values)
    )
    label = f"best gain so far {formatting.format_points(values[-1])}"
    return Markup(
        '<svg class="tiny" viewBox="0 0 72 20" role="img" aria-label="{}"><polyline points="{}"/></svg>'
    ).format(label, points)


def render_time(seconds: float) -> Markup:
    """Render a time; a script converts it to the reader's time zone."""
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # out of the range of dates
        return Markup("–")
    return Markup('<time datetime="{}">{}</time>').format(
        at.isoformat(timespec="seconds"), at.strftime("%Y-%m-%d %H:%M")
    )


def choose_tone(row: RunRow) -> str:
    """Return the CSS class for the ending of a run."""
    if row.ending is None:
        return TONES[row.state]
    return "good" if row.ending in GOOD else "warn" if row.ending == "interrupted" else "bad"


def link(path: str, **query: Any) -> str:
    """Build a URL with the query parameters that are set."""
    pairs = [
        (name, each)
        for name, value in query.items()
        for each in (value if isinstance(value, list | tuple) else [value])
        if each is not None and each is not False and each != ""
    ]
    return f"{path}?{urlencode(pairs)}" if pairs else path


_ENVIRONMENT = page_templates.create_environment(
    {
        "moment": render_time,
        "name": formatting.shorten_name,
        "scored": formatting.format_score,
        "interval": formatting.format_interval,
        "sparkline": render_sparkline,
        "tone": choose_tone,
    },
    FOLDER,
)
_ENVIRONMENT.globals |= {"link": link}
