"""The figures of a report: the same bytes of SVG for the same run and the same version of matplotlib."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.report import charts, figure_files, time_series_charts
from agent2rl.report.chart_style import STYLE
from agent2rl.report.figure_files import NARROW
from agent2rl.report.report_data import ReportData


def draw_figures(shown: ReportData, narrow: bool = False) -> dict[str, Figure]:
    """By name; what there is nothing to draw of is not there."""
    end = charts.find_time_end(shown)
    at = None if shown.timeline.started is None else shown.timeline.at
    with mpl.rc_context(STYLE):
        figures = {
            "scores": charts.draw_scores(shown.view, at, end, narrow),
            "timeline": charts.draw_timeline(shown, end, narrow),
            "rollouts": time_series_charts.draw_rollouts(shown, end, narrow),
            "tokens": time_series_charts.draw_tokens(shown, end, narrow),
            "resources": time_series_charts.draw_resources(shown, end, narrow),
        }
        if not narrow:
            figures["curves"] = time_series_charts.draw_curves(shown)
    return {name: figure for name, figure in figures.items() if figure}


def render_all_svgs(shown: ReportData) -> dict[str, str]:
    """Each figure as SVG, and again for telephones."""
    return figure_files.render_svgs(draw_figures(shown)) | _render_narrow_svgs(shown)


def save(shown: ReportData, folder: Path) -> dict[str, str]:
    """Write each figure as SVG and PNG and return `render_all_svgs`."""
    return figure_files.save_figures(draw_figures(shown), folder) | _render_narrow_svgs(shown)


def _render_narrow_svgs(shown: ReportData) -> dict[str, str]:
    return {
        name + NARROW: text
        for name, text in figure_files.render_svgs(draw_figures(shown, narrow=True)).items()
    }
