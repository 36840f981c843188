"""Writes the figures of the Agent² RL-Bench paper (arXiv 2604.10547) by number, from the runs of a campaign.

Most of them are figures of the campaign report under another name. A figure that lacks data is drawn as a
sentence that says what is missing. docs/campaigns.md says how each number was matched.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap

from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.analysis.campaigns.paper_view import MarkedHeatmap, PaperView
from agent2rl.core.base_record import Record
from agent2rl.core.errors import UserError
from agent2rl.record.files import move_into, write_atomically
from agent2rl.report import (
    campaign_charts,
    campaign_page,
    campaign_tables,
    chart_style,
    leaderboard_table,
    page_templates,
)
from agent2rl.report.campaign_page import CampaignFigure
from agent2rl.report.campaign_tables import Table
from agent2rl.report.formatting import DIM

PAGE = "paper.html"
CAPTIONS = {
    "stacks": "Mean gain over the untouched model in points, by agent stack and task, in the mode free.",
    "trajectories": "Best score so far of each run above the untouched model, over the agent's time; the "
    "black line is the median.",
    "modes": "Mean gain in points by mode and task, within an agent stack. The best and the worst mode of "
    "each task are marked.",
    "drivers": "Mean gain in points by driver LLM and task, within an agent in the mode free. The best and "
    "the worst driver of each task are marked.",
    "routes": "Training routes of the runs' best models, as reports infer them from code and processes.",
}


class PaperFigureData(Record):
    """One figure in paper.json."""

    number: int
    title: str
    caption: str
    missing: str
    """What data it lacks; empty if it could be drawn."""
    rows: tuple[dict[str, str | int | float | None], ...]


class PaperData(Record):
    """The record in paper.json."""

    campaign: str
    runs: int
    figures: tuple[PaperFigureData, ...]
    coverage: tuple[dict[str, str | int | float | None], ...]
    coverage_runs: tuple[dict[str, str | int | float | None], ...]
    deviations: tuple[str, ...]


@dataclass(frozen=True)
class PaperFigure:
    number: int
    chart: CampaignFigure
    missing: str


def list_paper_figures(campaign: CampaignAnalysis, view: PaperView) -> Iterator[PaperFigure]:
    """Yield figures 3, 5, 6, 7 and 9."""
    build = partial(_build_figure, view)
    yield build(3, "stacks", "Gain by agent stack and task", *_use_table(view.stacks))
    yield build(
        5,
        "trajectories",
        "Best score so far over time",
        partial(campaign_charts.draw_trajectories, campaign),
        partial(campaign_tables.build_trajectory_rows, campaign),
    )
    yield build(6, "modes", "Modes, with the best and the worst of each task", *_use_table(view.modes))
    yield build(7, "drivers", "Drivers within the same agent", *_use_table(view.drivers))
    yield build(
        9,
        "routes",
        "Training routes",
        partial(campaign_charts.draw_routes, campaign),
        partial(campaign_tables.build_route_rows, campaign),
    )


Draw = Callable[[bool], Figure | None]
BuildRows = Callable[[], Table]


def _build_figure(
    view: PaperView, number: int, key: str, title: str, draw: Draw, rows: BuildRows
) -> PaperFigure:
    missing = view.missing.get(key, "")
    if missing:
        draw, rows = partial(_draw_missing, missing), partial(_build_missing_rows, missing)
    name = f"figure-{number}"
    chart = CampaignFigure(name, "figures", f"Figure {number}. {title}", CAPTIONS[key], draw, rows)
    return PaperFigure(number, chart, missing)


def _use_table(table: MarkedHeatmap | None) -> tuple[Draw, BuildRows]:
    if table is None:
        return (lambda _: None), list
    marks = table.get_marks()
    return (
        lambda narrow: campaign_charts.draw_gains(table.heatmap, narrow, marks),
        lambda: campaign_tables.build_heatmap_rows(table.heatmap, marks),
    )


def _draw_missing(text: str, narrow: bool) -> Figure:
    """Draw a figure that says what it lacks."""
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    lines = ["This figure cannot be drawn.", *wrap(text, 44 if narrow else 100)]
    figure, (axes,) = chart_style.create_panels(width, 0.7 + 0.2 * len(lines))
    axes.axis("off")
    axes.text(0.0, 1.0, "\n".join(lines), transform=axes.transAxes, va="top", color=DIM)
    return figure


def _build_missing_rows(text: str) -> Table:
    return [{"missing": text}]


# Writing the report.


def write_paper_report(
    campaign: CampaignAnalysis, view: PaperView, summaries: Mapping[str, str], target: Path
) -> Path:
    """Write all files and return the path of the page. `summaries` are the runs' summary.jsonl by run id.

    They are written to a temporary folder first, so that an interruption leaves an earlier report intact.
    """
    figures = list(list_paper_figures(campaign, view))
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=target) as temporary:
            folder = Path(temporary)
            texts, _ = campaign_page.draw_figures([each.chart for each in figures], folder / "figures")
            _write_tables(campaign, view, figures, folder)
            write_atomically(folder / "paper.md", render_markdown(campaign, view, figures))
            write_atomically(folder / PAGE, render_html(campaign, view, figures, texts))
            (folder / "summaries").mkdir()
            for run_id, text in summaries.items():
                write_atomically(folder / "summaries" / f"{run_id}.jsonl", text)
            move_into(folder, target)
    except OSError as error:
        raise UserError(
            f"Cannot write the report to {target}: {error.strerror}.",
            "Choose a writable folder with --output, or free some disk space.",
        ) from error
    return target / PAGE


def _write_tables(
    campaign: CampaignAnalysis, view: PaperView, figures: Sequence[PaperFigure], folder: Path
) -> None:
    coverage = campaign_tables.build_coverage_rows(campaign)
    runs = campaign_tables.build_run_count_rows(campaign.leaderboard)
    write_atomically(folder / "coverage.csv", campaign_tables.render_csv(coverage))
    write_atomically(folder / "coverage-runs.csv", campaign_tables.render_csv(runs))
    data = PaperData(
        campaign=campaign.name,
        runs=campaign.leaderboard.runs,
        figures=tuple(
            PaperFigureData(
                number=each.number,
                title=each.chart.title,
                caption=each.chart.caption,
                missing=each.missing,
                rows=() if each.missing else tuple(dict(row) for row in each.chart.rows()),
            )
            for each in figures
        ),
        coverage=tuple(dict(row) for row in coverage),
        coverage_runs=tuple(dict(row) for row in runs),
        deviations=view.deviations,
    )
    write_atomically(folder / "paper.json", data.model_dump_json() + "\n")


def render_html(
    campaign: CampaignAnalysis, view: PaperView, figures: Sequence[PaperFigure], texts: Mapping[str, str]
) -> str:
    return page_templates.render_page(
        "paper.html.jinja",
        {},
        campaign=campaign,
        title=_build_title(campaign),
        notes=[*view.deviations, *campaign_page.notes(campaign)],
        drawn=figures,
        figures=page_templates.inline_figures(texts),
        tasks=campaign.leaderboard.tasks,
        run_counts=campaign_tables.build_run_count_rows(campaign.leaderboard),
        board_notes=leaderboard_table.table_notes(campaign.leaderboard),
    )


def render_markdown(campaign: CampaignAnalysis, view: PaperView, figures: Sequence[PaperFigure]) -> str:
    parts = [f"# {_build_title(campaign)}", *view.deviations, *campaign_page.notes(campaign)]
    for each in figures:
        name, text = each.chart.name, f"Missing: {each.missing}" if each.missing else each.chart.caption
        parts.append(f"## {each.chart.title}\n\n![{each.chart.title}](figures/{name}.svg)\n\n{text}")
        parts.append(f"Data: [{name}.csv](figures/{name}.csv)")
    parts.append("## Coverage\n\nData: [coverage.csv](coverage.csv), [coverage-runs.csv](coverage-runs.csv)")
    return "\n\n".join(parts) + "\n"


def _build_title(campaign: CampaignAnalysis) -> str:
    return f"The paper's figures for {campaign_page.build_title(campaign).lower()}"
