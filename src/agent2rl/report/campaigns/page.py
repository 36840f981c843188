"""The report of many runs: campaign.json, campaign.html, campaign.md, and each figure as SVG, PNG and CSV."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.core.errors import UserError
from agent2rl.report import figure_files, formatting, page_templates
from agent2rl.report.campaigns import figure_data, leaderboard_table
from agent2rl.report.campaigns.figures import CampaignFigure, list_figures
from agent2rl.store.files import move_into, write_atomically

SECTIONS = {
    "headline": "Headline",
    "leaderboard": "Leaderboard",
    "cells": "Cells",
    "heatmaps": "Heat maps",
    "comparisons": "Comparisons",
    "scaling": "Scaling",
    "passk": "Best of k",
    "routes": "Routes",
    "coverage": "Coverage",
    "making": "How this was made",
}
PAGE = "campaign.html"
SHOWN = 5
"""Runs that could not be read, by name."""


def write(campaign: CampaignAnalysis, target: Path) -> Path:
    """Write all of it; what stops it before the end leaves an earlier one whole. Returns the page."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=target) as aside:
            made = Path(aside)
            texts, drawn = _draw_figures(campaign, made / "figures")
            write_atomically(made / "campaign.json", campaign.model_dump_json() + "\n")
            write_atomically(made / "campaign.md", render_markdown(campaign, drawn))
            write_atomically(made / PAGE, render_html(campaign, drawn, texts))
            write_atomically(
                made / "leaderboard.csv",
                figure_data.render_csv(figure_data.build_leaderboard_rows(campaign.leaderboard)),
            )
            write_atomically(
                made / "cells.csv", figure_data.render_csv(figure_data.build_cell_rows(campaign.leaderboard))
            )
            move_into(made, target)
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {target}: {error.strerror}.",
            "Name a folder that you may write with --output, or make room.",
        ) from error
    return target / PAGE


def _draw_figures(campaign: CampaignAnalysis, folder: Path) -> tuple[dict[str, str], list[CampaignFigure]]:
    """Those that there is something to draw in, as SVG for desks and telephones; the files are written."""
    wide = {each.name: (each, each.draw_figure(narrow=False)) for each in list_figures(campaign)}
    drawn = [each for each, found in wide.values() if found]
    texts = figure_files.save_figures({each.name: found for each, found in wide.values() if found}, folder)
    narrow = {each.name + figure_files.NARROW: each.draw_figure(narrow=True) for each in drawn}
    for each in drawn:
        write_atomically(folder / f"{each.name}.csv", figure_data.render_csv(each.rows()))
    return texts | figure_files.render_svgs({name: found for name, found in narrow.items() if found}), drawn


def render_html(campaign: CampaignAnalysis, drawn: list[CampaignFigure], texts: Mapping[str, str]) -> str:
    return page_templates.render_page(
        "campaign.html.jinja",
        {
            "figure_text": leaderboard_table.format_figure,
            "told": leaderboard_table.format_exclusions,
            "succeeded": leaderboard_table.format_success,
            "counted": leaderboard_table.format_run_count,
            "short_name": formatting.shorten_name,
            "marked_name": leaderboard_table.mark_name,
        },
        campaign=campaign,
        title=build_title(campaign),
        sentence=sentence(campaign),
        notes=notes(campaign),
        columns=leaderboard_table.list_columns(campaign.leaderboard),
        rows=leaderboard_table.build_rows(campaign.leaderboard),
        cells=[
            (row, task, found) for row in campaign.leaderboard.rows for task, found in row.by_task.items()
        ],
        board_notes=leaderboard_table.table_notes(campaign.leaderboard),
        drawn={section: [each for each in drawn if each.section == section] for section in SECTIONS},
        figures=page_templates.inline_figures(texts),
        sections=SECTIONS.items(),
    )


def render_markdown(campaign: CampaignAnalysis, drawn: list[CampaignFigure]) -> str:
    parts = [
        f"# {build_title(campaign)}",
        sentence(campaign),
        *notes(campaign),
        leaderboard_table.render_markdown(
            campaign.leaderboard, leaderboard_table.table_notes(campaign.leaderboard)
        ),
    ]
    for each in drawn:
        parts.append(f"## {each.title}\n\n![{each.title}](figures/{each.name}.svg)\n\n{each.caption}")
        parts.append(f"Data: [{each.name}.csv](figures/{each.name}.csv)")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def build_title(campaign: CampaignAnalysis) -> str:
    return f"Campaign {campaign.name}" if campaign.name else "All runs"


def sentence(campaign: CampaignAnalysis) -> str:
    """What came of it, in one."""
    found = campaign.leaderboard
    counted = found.runs - sum(found.excluded.values())
    if not counted:
        return f"{found.runs} runs, none of which has a gain yet."
    said, first = f"{counted} runs of {len(found.tasks)} tasks", found.rows[0]
    gained = f"{leaderboard_table.format_figure(first.place.mean)} points on average over tasks"
    if len(found.rows) == 1:
        return f"{said}: {first.name} gains {gained}."
    if first.place.chances:
        often = f"first in {first.place.chances[0]:.0%} of draws"
        return f"{said}, {len(found.rows)} entries: {first.name} is {often}, with {gained}."
    return f"{said}, {len(found.rows)} entries, none of which has enough runs to be ranked."


def notes(campaign: CampaignAnalysis) -> list[str]:
    found = leaderboard_table.contamination_notes(campaign.leaderboard)
    if many := campaign.other_protocol:
        other = "paper" if campaign.protocol == "heldout" else "heldout"
        found.append(f"{many} runs under protocol {other} are left out: their gains are another quantity.")
    if campaign.unreadable:
        shown = "; ".join(campaign.unreadable[:SHOWN])
        more = len(campaign.unreadable) - SHOWN
        found.append(f"Could not be read: {shown}{f' and {more} more' if more > 0 else ''}.")
    return found
