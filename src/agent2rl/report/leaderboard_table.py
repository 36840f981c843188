"""The leaderboard, with the same columns for terminals, Markdown and pages.

An unknown value is empty, never 0.
"""

from collections.abc import Sequence

from agent2rl.analysis.campaigns.cell_statistics import Cell, GainTally
from agent2rl.analysis.campaigns.leaderboard import Leaderboard, LeaderboardRow
from agent2rl.analysis.campaigns.resampling import IntervalEstimate
from agent2rl.core.grading_records import Interval
from agent2rl.report import formatting, page_templates, reproductions

NONE = "–"
MARK = formatting.CONTAMINATED_MARK


def list_columns(board: Leaderboard) -> list[str]:
    kept = ["mode kept"] if _has_restricted_mode(board) else []
    tried = ["reproduced"] if _has_reproductions(board) else []
    return [
        *("rank", "entry", "mean gain", "succeeded", "runs", *kept, *tried, *board.tasks),
        *(["other tasks"] if _has_panel(board) else []),
        *("cost of a run", "time to best", *(["points per $"] if _has_known_price(board) else [])),
    ]


def _has_reproductions(board: Leaderboard) -> bool:
    return any(row.all.reproduced for row in board.rows)


def _has_panel(board: Leaderboard) -> bool:
    return any(row.all.also for row in board.rows)


def _has_restricted_mode(board: Leaderboard) -> bool:
    """Check whether any run has a mode that can be broken."""
    return any(row.all.compliance for row in board.rows)


def _has_known_price(board: Leaderboard) -> bool:
    return any(row.cost and row.cost.points_per_usd is not None for row in board.rows)


def build_rows(board: Leaderboard) -> list[list[str]]:
    has_modes, has_prices = _has_restricted_mode(board), _has_known_price(board)
    has_reproductions, has_panel = _has_reproductions(board), _has_panel(board)
    return [
        [
            format_rank(row),
            mark_name(row.name, row.all.contaminated),
            format_figure(row.place.mean),
            format_success(row.all),
            format_run_count(row.all),
            *([format_compliance(row.all)] if has_modes else []),
            *([_format_reproductions(row.all)] if has_reproductions else []),
            *(format_cell(row.by_task.get(task)) for task in board.tasks),
            *([format_panel(row.all)] if has_panel else []),
            format_cost(row),
            format_time_to_best(row),
            *([format_points_per_usd(row)] if has_prices else []),
        ]
        for row in board.rows
    ]


def build_notes(board: Leaderboard) -> list[str]:
    """Return the notes that belong below the table."""
    return [*table_notes(board), *contamination_notes(board)]


def contamination_notes(board: Leaderboard) -> list[str]:
    """Say which runs are or may be contaminated, and whether they are counted; repeat other warnings."""
    notes = []
    if many := board.contaminated_left_out:
        are, their = ("is", "its workspace") if many == 1 else ("are", "their workspaces")
        notes.append(
            f"{formatting.pluralize(many, 'contaminated run')} {are} left out: "
            f"evaluation data was found in {their}. "
            f"Include {'it' if many == 1 else 'them'} with --include-contaminated."
        )
    if many := board.contaminated:
        are, their = ("is", "its workspace") if many == 1 else ("are", "their workspaces")
        notes.append(
            f"{MARK} {formatting.pluralize(many, 'contaminated run')} {are} included: "
            "evaluation data was found in "
            f"{their}."
        )
    if many := board.contamination_unknown:
        were, it, is_ = ("was", "it", "is") if many == 1 else ("were", "they", "are")
        notes.append(
            f"{formatting.pluralize(many, 'run')} {were} not searched for evaluation data: whether {it} "
            f"{is_} contaminated is unknown, and {it} {is_} counted."
        )
    warned = sorted(board.warnings.items())
    return notes + [f"WARNING, {formatting.pluralize(many, 'run')}: {text}" for text, many in warned]


ISOLATION_NOTES = {
    "partial": "ran in a sandbox that isolates in part: the report names the promises that it does not keep.",
    "none": "ran without isolation.",
}


def table_notes(board: Leaderboard) -> list[str]:
    by = (
        "on held-out data"
        if board.protocol == "default"
        else "on the test set that also chose them (paper protocol)"
    )
    notes = [f"Gains are points above the untouched model, {by}. Intervals are 95%."]
    if any("network " in task for task in board.tasks):
        notes.append("A task with `network` in its name let the agent reach hosts outside its sandbox.")
    if board.excluded:
        excluded = f"{sum(board.excluded.values())} of {board.runs} runs"
        notes.append(
            f"{excluded} say nothing about their agent and are not counted: "
            f"{format_exclusions(board.excluded)}."
        )
    if many := sum(row.all.compliance.get("broken", 0) for row in board.rows):
        its, it = ("its mode", "It is") if many == 1 else ("their modes", "They are")
        notes.append(f"{formatting.pluralize(many, 'run')} broke {its}. {it} counted.")
    if _has_panel(board):
        notes.append(
            "Other tasks: the effect of training on the tasks of the regression panel. "
            "It does not affect the ranking."
        )
    if _has_reproductions(board):
        notes.append(reproductions.NOTE)
    for level, text in ISOLATION_NOTES.items():
        if many := board.isolation.get(level, 0):
            notes.append(
                f"{formatting.pluralize(many, 'run')} {text} {'It is' if many == 1 else 'They are'} counted."
            )
    if any(isinstance(row.place.rank, str) for row in board.rows):
        notes.append(
            f"{NONE} as a rank: not enough runs. A rank needs two runs of each task, and five in all."
        )
    return notes


def render_markdown(board: Leaderboard, below: Sequence[str] | None = None) -> str:
    """Render the table with its own notes below, or with the given ones."""
    names = list_columns(board)
    rule = "|" + "|".join(":--" if name == "entry" else "--:" for name in names) + "|"
    below = build_notes(board) if below is None else below
    return "\n".join([_render_line(names), rule, *map(_render_line, build_rows(board)), "", *below, ""])


def render_html(board: Leaderboard) -> str:
    return page_templates.render_page(
        "leaderboard.html.jinja",
        {},
        title="Leaderboard",
        columns=list_columns(board),
        rows=build_rows(board),
        board_notes=build_notes(board),
    )


def format_rank(row: LeaderboardRow) -> str:
    rank, interval = row.place.rank, row.place.rank_interval
    if isinstance(rank, str) or isinstance(interval, str):
        return NONE
    return f"{rank:.1f} [{interval[0]:.0f}, {interval[1]:.0f}]"


def format_figure(estimate: IntervalEstimate | None) -> str:
    if estimate is None:
        return NONE
    value, interval = formatting.format_points(estimate.value), estimate.interval
    return f"{value} [{interval.low:.1f}, {interval.high:.1f}]" if isinstance(interval, Interval) else value


def format_cell(cell: Cell | None) -> str:
    return formatting.format_points(cell.mean.value) if cell and cell.mean else NONE


def format_success(tally: GainTally) -> str:
    return NONE if tally.succeeded is None else f"{tally.succeeded} of {tally.n}"


def format_run_count(tally: GainTally) -> str:
    excluded = sum(tally.excluded.values())
    extras = [f"+{excluded}"] if excluded else []
    extras += [f"{tally.contaminated} {MARK}"] if tally.contaminated else []
    return f"{tally.n} ({', '.join(extras)})" if extras else str(tally.n)


def format_compliance(tally: GainTally) -> str:
    """Format how many runs kept their mode."""
    if not tally.compliance:
        return NONE
    unknown = tally.compliance.get("unknown", 0)
    doubts = f" ({unknown} unknown)" if unknown else ""
    return f"{tally.compliance.get('kept', 0)} of {sum(tally.compliance.values())}{doubts}"


def _format_reproductions(tally: GainTally) -> str:
    return reproductions.format_reproduction_counts(tally.reproduced) if tally.reproduced else NONE


def format_panel(tally: GainTally) -> str:
    """Format the mean changes on the tasks of the regression panels."""
    changes = [
        f"{formatting.shorten_name(task)} {formatting.format_points(change)}"
        for task, change in tally.also.items()
    ]
    return ", ".join(changes) or NONE


def mark_name(name: str, contaminated: int) -> str:
    """Mark a name that includes contaminated runs; in front, where figures do not cut it off."""
    return f"{MARK} {name}" if contaminated else name


def format_cost(row: LeaderboardRow) -> str:
    if row.cost is None:
        return NONE
    parts = [formatting.format_duration(row.cost.seconds)]
    if row.cost.tokens:
        parts.append(f"{row.cost.tokens / 1e3:,.0f}k tokens")
        parts.append("$?" if row.cost.usd is None else f"${row.cost.usd:.2f}")
    return ", ".join(parts)


def format_time_to_best(row: LeaderboardRow) -> str:
    seconds = row.cost.seconds_to_best if row.cost else None
    return NONE if seconds is None else formatting.format_duration(seconds)


def format_points_per_usd(row: LeaderboardRow) -> str:
    points = row.cost.points_per_usd if row.cost else None
    return NONE if points is None else formatting.format_points(points)


def format_exclusions(excluded: dict[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in excluded.items())


def _render_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escape_cell, cells))} |"


def _escape_cell(text: str) -> str:
    marks = {"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " ", "\r": " "}
    return "".join(marks.get(each, each) for each in formatting.escape_invisible(text))
