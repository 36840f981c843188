"""The long parts of pages, as the workshop makes them: a run's analysis, and the report of many runs."""

import json
import re
from functools import lru_cache
from pathlib import Path

import matplotlib as mpl

from agent2rl.analysis.campaigns.campaign import campaign
from agent2rl.analysis.campaigns.shares import Traits
from agent2rl.dashboard import pages, progress
from agent2rl.dashboard.asked import Asked
from agent2rl.dashboard.index import read_digests
from agent2rl.report import charts, drawing, html, images, page, plots, series, sheets
from agent2rl.report.campaigns import page as many
from agent2rl.report.drawing import STYLE
from agent2rl.report.shown import Shown
from agent2rl.store.paths import RunPaths

LINK = re.compile(r'href="((?:figures/)?[\w.-]+\.(?:csv|svg|png))"')
OF = 4
"""Steps of an analysis."""
SHORTEST = 1.0
"""Seconds that a window shows, at least."""
NAV, END = 'aria-label="Contents">', "</nav>"
MAIN = ('<main id="main">', "</main>")


def of_run(root: str, stamp: str) -> str:
    """What a run's report says, as the inside of a page."""
    shown = _gathered(root, stamp)
    progress.tell(4, OF, "drawing its figures")
    text = html.page(shown, plots.texts(shown))
    return _contents(text) + inside(text)


def of_window(root: str, stamp: str, since: str, until: str) -> str:
    """What happened between two moments of the agent's time, as the inside of a page."""
    shown = _gathered(root, stamp)
    progress.tell(4, OF, "drawing its figures")
    end = charts.end_of_time(shown)
    last = min(end, float(until) or end)
    first = max(0.0, min(float(since), last - SHORTEST))
    figures: dict[str, str] = {}
    for narrow in (False, True):
        with mpl.rc_context(STYLE):
            drawn = {
                "timeline": charts.timeline(shown, last, narrow, first),
                "resources": series.resources(shown, end, narrow),
                "rollouts": series.rollouts(shown, end, narrow),
                "tokens": series.tokens(shown, end, narrow),
            }
        for name, figure in drawn.items():
            for axes in figure.axes if figure and name != "timeline" else ():
                seconds = drawing.unit(end)[0]
                axes.set_xlim(first / seconds, last / seconds)
        known = {name: figure for name, figure in drawn.items() if figure}
        texts = images.texts(known)
        figures |= {name + (images.NARROW if narrow else ""): text for name, text in texts.items()}
    attempts = [(each.number, each.began, each.ended) for each in shown.findings.attempts]
    window = {"first": first, "last": last, "end": end, "attempts": attempts}
    return pages.page("window.jinja", figures=sheets.figures(figures), frame=_frame(), **window)


@lru_cache(maxsize=2)
def _gathered(root: str, stamp: str) -> Shown:
    """`stamp` is there to tell one state of a run from another."""
    del stamp
    steps = iter(range(1, OF))
    return page.gather(RunPaths(Path(root)), lambda step: progress.tell(next(steps), OF, step))


def _frame() -> tuple[float, float]:
    """Where on the timeline's picture its axis begins and ends, as shares of the width."""
    return 0.9 / drawing.WIDE, 1 - drawing.Margins().right / drawing.WIDE


def of_runs(index: str, asked: str, tasks: str, protocol: str, contaminated: str, target: str) -> str:
    """The report of many runs; its figures and data are written to `target`, and linked from there."""
    progress.tell(1, 2, "reading what is known of each run")
    found = read_digests(Path(index), Asked.read(asked))
    traits = [Traits(**each) for each in json.loads(tasks)]
    made = campaign(
        found,
        traits,
        protocol="paper" if protocol == "paper" else "heldout",
        include_contaminated=contaminated == "included",
    )
    folder = Path(target)
    progress.tell(2, 2, f"drawing the figures of {len(found):,} runs")
    text = inside(many.write(made, folder).read_text(encoding="utf-8"))
    return LINK.sub(rf'href="/made/{folder.name}/\1"', text)


def _contents(text: str) -> str:
    """The list of a report's parts, as the page puts it above them."""
    return f'<nav class="contents" {NAV}{text.partition(NAV)[2].partition(END)[0]}{END}'


def inside(text: str) -> str:
    """Everything that others wrote is escaped, so these marks are the page's own."""
    return text.partition(MAIN[0])[2].rpartition(MAIN[1])[0]
