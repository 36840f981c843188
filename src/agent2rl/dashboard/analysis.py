"""The long parts of pages, as the workshop makes them: a run's analysis, and the report of many runs."""

import json
import re
from functools import lru_cache
from pathlib import Path

import matplotlib as mpl

from agent2rl.analysis.campaigns.campaign_analysis import analyse_campaign
from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.dashboard import rendering, work_progress
from agent2rl.dashboard.run_index import read_digests
from agent2rl.dashboard.run_query import RunQuery
from agent2rl.report import (
    chart_style,
    charts,
    figure_files,
    html,
    page_templates,
    plots,
    run_report,
    time_series_charts,
)
from agent2rl.report.campaigns import page as many
from agent2rl.report.chart_style import STYLE
from agent2rl.report.report_data import ReportData
from agent2rl.store.paths import RunPaths

LINK = re.compile(r'href="((?:figures/)?[\w.-]+\.(?:csv|svg|png))"')
STEP_COUNT = 4
"""Steps of an analysis."""
MIN_WINDOW_SECONDS = 1.0
"""Seconds that a window shows, at least."""
NAV, END = 'aria-label="Contents">', "</nav>"
MAIN = ('<main id="main">', "</main>")


def of_run(root: str, stamp: str) -> str:
    """What a run's report says, as the inside of a page."""
    shown = _gather_report_data(root, stamp)
    work_progress.report_step(4, STEP_COUNT, "drawing its figures")
    text = html.page(shown, plots.render_all_svgs(shown))
    return _extract_contents(text) + extract_main(text)


def of_window(root: str, stamp: str, since: str, until: str) -> str:
    """What happened between two moments of the agent's time, as the inside of a page."""
    shown = _gather_report_data(root, stamp)
    work_progress.report_step(4, STEP_COUNT, "drawing its figures")
    end = charts.find_time_end(shown)
    last = min(end, float(until) or end)
    first = max(0.0, min(float(since), last - MIN_WINDOW_SECONDS))
    figures: dict[str, str] = {}
    for narrow in (False, True):
        with mpl.rc_context(STYLE):
            drawn = {
                "timeline": charts.draw_timeline(shown, last, narrow, first),
                "resources": time_series_charts.draw_resources(shown, end, narrow),
                "rollouts": time_series_charts.draw_rollouts(shown, end, narrow),
                "tokens": time_series_charts.draw_tokens(shown, end, narrow),
            }
        for name, figure in drawn.items():
            for axes in figure.axes if figure and name != "timeline" else ():
                seconds = chart_style.choose_time_unit(end)[0]
                axes.set_xlim(first / seconds, last / seconds)
        known = {name: figure for name, figure in drawn.items() if figure}
        texts = figure_files.render_svgs(known)
        figures |= {name + (figure_files.NARROW if narrow else ""): text for name, text in texts.items()}
    attempts = [(each.number, each.began, each.ended) for each in shown.findings.attempts]
    window = {"first": first, "last": last, "end": end, "attempts": attempts}
    return rendering.render_template(
        "window.jinja", figures=page_templates.inline_figures(figures), frame=_locate_time_axis(), **window
    )


@lru_cache(maxsize=2)
def _gather_report_data(root: str, stamp: str) -> ReportData:
    """`stamp` is there to tell one state of a run from another."""
    del stamp
    steps = iter(range(1, STEP_COUNT))
    return run_report.gather_report_data(
        RunPaths(Path(root)), lambda step: work_progress.report_step(next(steps), STEP_COUNT, step)
    )


def _locate_time_axis() -> tuple[float, float]:
    """Where on the timeline's picture its axis begins and ends, as shares of the width."""
    return 0.9 / chart_style.WIDE_INCHES, 1 - chart_style.Margins().right / chart_style.WIDE_INCHES


def of_runs(index: str, asked: str, tasks: str, protocol: str, contaminated: str, target: str) -> str:
    """The report of many runs; its figures and data are written to `target`, and linked from there."""
    work_progress.report_step(1, 2, "reading what is known of each run")
    found = read_digests(Path(index), RunQuery.from_json(asked))
    traits = [TaskTraits(**each) for each in json.loads(tasks)]
    made = analyse_campaign(
        found,
        traits,
        protocol="paper" if protocol == "paper" else "heldout",
        include_contaminated=contaminated == "included",
    )
    folder = Path(target)
    work_progress.report_step(2, 2, f"drawing the figures of {len(found):,} runs")
    text = extract_main(many.write(made, folder).read_text(encoding="utf-8"))
    return LINK.sub(rf'href="/made/{folder.name}/\1"', text)


def _extract_contents(text: str) -> str:
    """The list of a report's parts, as the page puts it above them."""
    return f'<nav class="contents" {NAV}{text.partition(NAV)[2].partition(END)[0]}{END}'


def extract_main(text: str) -> str:
    """Everything that others wrote is escaped, so these marks are the page's own."""
    return text.partition(MAIN[0])[2].rpartition(MAIN[1])[0]
