"""The report of many runs: campaign.json, campaign.html, campaign.md, and each figure as SVG, PNG and CSV."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from agent2rl.analysis.campaigns.campaign import Campaign
from agent2rl.core.errors import UserError
from agent2rl.report import images, sheets, words
from agent2rl.report.campaigns import board, data
from agent2rl.report.campaigns.figures import Drawn, figures
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


def write(campaign: Campaign, target: Path) -> Path:
    """Write all of it; what stops it before the end leaves an earlier one whole. Returns the page."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=target) as aside:
            made = Path(aside)
            texts, drawn = _figures(campaign, made / "figures")
            write_atomically(made / "campaign.json", campaign.model_dump_json() + "\n")
            write_atomically(made / "campaign.md", markdown(campaign, drawn))
            write_atomically(made / PAGE, html(campaign, drawn, texts))
            write_atomically(made / "leaderboard.csv", data.text(data.leaderboard(campaign.leaderboard)))
            write_atomically(made / "cells.csv", data.text(data.cells(campaign.leaderboard)))
            move_into(made, target)
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {target}: {error.strerror}.",
            "Name a folder that you may write with --output, or make room.",
        ) from error
    return target / PAGE


def _figures(campaign: Campaign, folder: Path) -> tuple[dict[str, str], list[Drawn]]:
    """Those that there is something to draw in, as SVG for desks and telephones; the files are written."""
    wide = {each.name: (each, each.figure(narrow=False)) for each in figures(campaign)}
    drawn = [each for each, found in wide.values() if found]
    texts = images.save({each.name: found for each, found in wide.values() if found}, folder)
    narrow = {each.name + images.NARROW: each.figure(narrow=True) for each in drawn}
    for each in drawn:
        write_atomically(folder / f"{each.name}.csv", data.text(each.rows()))
    return texts | images.texts({name: found for name, found in narrow.items() if found}), drawn


def html(campaign: Campaign, drawn: list[Drawn], texts: Mapping[str, str]) -> str:
    return sheets.render(
        "campaign.html.jinja",
        {
            "figure_text": board.figure,
            "told": board.told,
            "succeeded": board.succeeded,
            "counted": board.counted,
            "short_name": words.name,
            "marked_name": board.marked_name,
        },
        campaign=campaign,
        title=title(campaign),
        sentence=sentence(campaign),
        notes=notes(campaign),
        columns=board.columns(campaign.leaderboard),
        rows=board.rows(campaign.leaderboard),
        cells=[
            (row, task, found) for row in campaign.leaderboard.rows for task, found in row.by_task.items()
        ],
        board_notes=board.table_notes(campaign.leaderboard),
        drawn={section: [each for each in drawn if each.section == section] for section in SECTIONS},
        figures=sheets.figures(texts),
        sections=SECTIONS.items(),
    )


def markdown(campaign: Campaign, drawn: list[Drawn]) -> str:
    parts = [
        f"# {title(campaign)}",
        sentence(campaign),
        *notes(campaign),
        board.markdown(campaign.leaderboard, board.table_notes(campaign.leaderboard)),
    ]
    for each in drawn:
        parts.append(f"## {each.title}\n\n![{each.title}](figures/{each.name}.svg)\n\n{each.caption}")
        parts.append(f"Data: [{each.name}.csv](figures/{each.name}.csv)")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def title(campaign: Campaign) -> str:
    return f"Campaign {campaign.name}" if campaign.name else "All runs"


def sentence(campaign: Campaign) -> str:
    """What came of it, in one."""
    found = campaign.leaderboard
    counted = found.runs - sum(found.excluded.values())
    if not counted:
        return f"{found.runs} runs, none of which has a gain yet."
    said, first = f"{counted} runs of {len(found.tasks)} tasks", found.rows[0]
    gained = f"{board.figure(first.place.mean)} points on average over tasks"
    if len(found.rows) == 1:
        return f"{said}: {first.name} gains {gained}."
    if first.place.chances:
        often = f"first in {first.place.chances[0]:.0%} of draws"
        return f"{said}, {len(found.rows)} entries: {first.name} is {often}, with {gained}."
    return f"{said}, {len(found.rows)} entries, none of which has enough runs to be ranked."


def notes(campaign: Campaign) -> list[str]:
    found = board.contamination_notes(campaign.leaderboard)
    if many := campaign.other_protocol:
        other = "paper" if campaign.protocol == "heldout" else "heldout"
        found.append(f"{many} runs under protocol {other} are left out: their gains are another quantity.")
    if campaign.unreadable:
        shown = "; ".join(campaign.unreadable[:SHOWN])
        more = len(campaign.unreadable) - SHOWN
        found.append(f"Could not be read: {shown}{f' and {more} more' if more > 0 else ''}.")
    return found
