"""The slow parts of pages, which need matplotlib: run analyses, leaderboards and score trajectories.

Import this module only where they are rendered: matplotlib takes a second to load.
"""

import json
import re
import threading
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign_analysis import analyse_campaign
from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.analysis.findings import TrainingCurves
from agent2rl.analysis.recorded_run import PLAIN_NAME
from agent2rl.dashboard import rendering, workers
from agent2rl.dashboard.run_index import RunQuery, read_digests
from agent2rl.dashboard.run_status import LiveRunStatus
from agent2rl.record.paths import RunPaths
from agent2rl.report import (
    activity_figures,
    campaign_page,
    chart_style,
    digests,
    formatting,
    html,
    page_templates,
    run_figures,
    run_report,
)
from agent2rl.report.chart_style import STYLE, Margins
from agent2rl.report.formatting import BASE, SERIES
from agent2rl.report.report_data import ReportData
from agent2rl.report.training_figures import draw_trainings_of_runs

LINK = re.compile(r'href="((?:figures/)?[\w.-]+\.(?:csv|svg|png))"')
STEP_COUNT = 4
"""Number of steps of an analysis, for the progress bar."""
MIN_WINDOW_SECONDS = 1.0
"""Shortest time window that a page shows."""


def render_run(root: str, stamp: str) -> str:
    """Render a run's report as the body of a page."""
    data = _gather_report_data(root, stamp)
    workers.report_step(4, STEP_COUNT, "drawing figures")
    text = html.page(data, run_figures.render_all_svgs(data))
    return rendering.extract_report(text)


def render_time_window(root: str, stamp: str, since: str, until: str) -> str:
    """Render what happened between two moments of the agent's time as the body of a page."""
    data = _gather_report_data(root, stamp)
    workers.report_step(4, STEP_COUNT, "drawing figures")
    end = run_figures.find_time_end(data)
    last = min(end, float(until) or end)
    first = max(0.0, min(float(since), last - MIN_WINDOW_SECONDS))
    figures: dict[str, str] = {}
    for narrow in (False, True):
        with mpl.rc_context(STYLE):
            drawn = {
                "timeline": activity_figures.draw_timeline(data, last, narrow, first),
                "resources": activity_figures.draw_resources(data, end, narrow),
                "rollouts": activity_figures.draw_rollouts(data, end, narrow),
                "tokens": activity_figures.draw_tokens(data, end, narrow),
            }
        for name, figure in drawn.items():
            for axes in figure.axes if figure and name != "timeline" else ():
                seconds = chart_style.choose_time_unit(end)[0]
                axes.set_xlim(first / seconds, last / seconds)
        texts = chart_style.render_svgs({name: figure for name, figure in drawn.items() if figure})
        figures |= {name + (chart_style.NARROW if narrow else ""): text for name, text in texts.items()}
    attempts = [(each.number, each.began, each.ended) for each in data.findings.attempts]
    window = {"first": first, "last": last, "end": end, "attempts": attempts}
    return rendering.render_template(
        "window.jinja", figures=page_templates.inline_figures(figures), frame=_locate_time_axis(), **window
    )


def render_trainings(roots: str) -> str:
    """Render the training curves of several runs in one figure; `roots` is a JSON list of run directories."""
    places = json.loads(roots)
    trainings = []
    for number, root in enumerate(places, 1):
        workers.report_step(number, len(places) + 1, f"reading the logs of run {number}")
        trainings.append(run_report.gather_report_data(RunPaths(Path(root))).findings.trainings)
    workers.report_step(len(places) + 1, len(places) + 1, "drawing figures")
    with mpl.rc_context(STYLE):
        drawn = {
            "trainings": draw_trainings_of_runs(trainings),
            "trainings" + chart_style.NARROW: draw_trainings_of_runs(trainings, narrow=True),
        }
    figures = chart_style.render_svgs({name: figure for name, figure in drawn.items() if figure})
    return rendering.render_template("trainings.jinja", figures=page_templates.inline_figures(figures))


@lru_cache(maxsize=2)
def _gather_report_data(root: str, stamp: str) -> ReportData:
    """Gather the report data of a run; `stamp` only keys the cache by the state of the run."""
    del stamp
    steps = iter(range(1, STEP_COUNT))
    return run_report.gather_report_data(
        RunPaths(Path(root)), lambda step: workers.report_step(next(steps), STEP_COUNT, step)
    )


def _locate_time_axis() -> tuple[float, float]:
    """Return where the time axis begins and ends in the timeline figure, as shares of its width."""
    # 0.9 is the left margin of the timeline, see `activity_figures`.
    return 0.9 / chart_style.WIDE_INCHES, 1 - chart_style.Margins().right / chart_style.WIDE_INCHES


def render_leaderboard(
    index: str, runs: str, query: str, tasks: str, protocol: str, contaminated: str, target: str
) -> str:
    """Render the report of many runs. Its figures and data go to `target`, and the page links to them.

    Training curves are those of runs that have a report: reading the logs of others would take too long.
    """
    workers.report_step(1, 2, "reading run digests")
    run_digests = read_digests(Path(index), RunQuery.from_json(query))
    traits = [TaskTraits(**task) for task in json.loads(tasks)]
    campaign = analyse_campaign(
        run_digests,
        traits,
        protocol="paper" if protocol == "paper" else "default",
        include_contaminated=contaminated == "included",
        read_trainings=partial(_read_cached_trainings, Path(runs)),
    )
    folder = Path(target)
    workers.report_step(2, 2, f"drawing the figures of {len(run_digests):,} runs")
    text = rendering.extract_main(campaign_page.write(campaign, folder).read_text(encoding="utf-8"))
    return LINK.sub(rf'href="/leaderboard/files/{folder.name}/\1"', text)


def _read_cached_trainings(runs: Path, run_id: str) -> Sequence[TrainingCurves]:
    """Return the curves of a run. Its id is from its own digest, which may be somebody else's."""
    named = PLAIN_NAME.fullmatch(run_id)
    return digests.read_cached_trainings(RunPaths(runs / run_id)) or () if named else ()


# Score trajectories of several runs in one figure.

_DRAWING = threading.Lock()
"""matplotlib's style is global to the process."""


def render_score_trajectories(runs: Sequence[LiveRunStatus]) -> dict[str, str]:
    """Draw the submission scores of all runs over time, as wide and narrow SVG."""
    with _DRAWING, mpl.rc_context(STYLE):
        figures = {
            "courses": _draw_trajectories(runs, narrow=False),
            "courses" + chart_style.NARROW: _draw_trajectories(runs, narrow=True),
        }
    return chart_style.render_svgs({name: figure for name, figure in figures.items() if figure})


def _draw_trajectories(runs: Sequence[LiveRunStatus], narrow: bool) -> Figure | None:
    drawn = [(at, run) for at, run in enumerate(runs) if run.scored and run.began is not None]
    if not drawn:
        return None
    figure, (axes,) = chart_style.create_panels(
        chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES,
        3.2,
        margins=Margins(top=0.12 + 0.165 * (len(drawn) + 1)),
    )
    ends = [one.accepted_at - (run.began or 0.0) for _, run in drawn for one in run.view.submissions]
    seconds = chart_style.set_time_axis(axes, max(ends) * 1.02, narrow)
    for at, run in drawn:
        colour = SERIES[at % len(SERIES)]
        points = [
            ((one.accepted_at - (run.began or 0.0)) / seconds, one.score)
            for one in run.view.submissions
            if one.score
        ]
        values = [score.value for _, score in points]
        low = [max(0.0, score.value - score.ci.low) for _, score in points]
        high = [max(0.0, score.ci.high - score.value) for _, score in points]
        label = formatting.make_drawable(f"{at + 1}: {run.view.paths.run_id}", 60)
        places = [place for place, _ in points]
        axes.errorbar(
            places, values, [low, high], fmt="o-", color=colour, markersize=4, elinewidth=1, label=label
        )
        if run.view.baseline:
            label = "untouched models" if len(drawn) > 1 else "untouched model"
            if at != drawn[0][0]:
                label = "_untouched model"  # one line in the legend stands for all
            value = run.view.baseline.value
            axes.axhline(value, color=BASE, linestyle=(0, (4, 3)), linewidth=0.9, label=label)
    axes.set_ylabel("score, %")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    chart_style.add_legend(axes, 1)
    return figure
