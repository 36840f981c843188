"""The leaderboard as texts: for terminals, Markdown and pages the same columns."""

from collections.abc import Sequence

from agent2rl.analysis.campaigns.cell_statistics import Cell, GainTally
from agent2rl.analysis.campaigns.leaderboard import Leaderboard, LeaderboardRow
from agent2rl.analysis.campaigns.resampling import IntervalEstimate
from agent2rl.core.records import Interval
from agent2rl.report import formatting, page_templates, tables

NONE = "–"
MARK = formatting.CONTAMINATED_MARK


def list_columns(board: Leaderboard) -> list[str]:
    return ["rank", "entry", "mean gain", "succeeded", "runs", *board.tasks, "cost of a run"]


def build_rows(board: Leaderboard) -> list[list[str]]:
    return [
        [
            format_rank(row),
            mark_name(row.name, row.all.contaminated),
            format_figure(row.place.mean),
            format_success(row.all),
            format_run_count(row.all),
            *(format_cell(row.by_task.get(task)) for task in board.tasks),
            format_cost(row),
        ]
        for row in board.rows
    ]


def build_notes(board: Leaderboard) -> list[str]:
    """What a reader must know beside the table."""
    return [*table_notes(board), *contamination_notes(board)]


def contamination_notes(board: Leaderboard) -> list[str]:
    """Which runs are contaminated or may be, and what became of them."""
    found = []
    if many := board.contaminated_left_out:
        are, their = ("is", "its workspace") if many == 1 else ("are", "their workspaces")
        found.append(
            f"{tables.pluralize(many, 'contaminated run')} {are} left out: "
            f"evaluation data was found in {their}. "
            f"Include {'it' if many == 1 else 'them'} with --include-contaminated."
        )
    if many := board.contaminated:
        are, their = ("is", "its workspace") if many == 1 else ("are", "their workspaces")
        found.append(
            f"{MARK} {tables.pluralize(many, 'contaminated run')} {are} included: "
            "evaluation data was found in "
            f"{their}."
        )
    if many := board.contamination_unknown:
        were, it, is_ = ("was", "it", "is") if many == 1 else ("were", "they", "are")
        found.append(
            f"{tables.pluralize(many, 'run')} {were} not searched for evaluation data: whether {it} {is_} "
            f"contaminated is unknown, and {it} {is_} counted."
        )
    return found


def table_notes(board: Leaderboard) -> list[str]:
    by = (
        "on held-out data"
        if board.protocol == "heldout"
        else "on the test set that chose them (paper protocol)"
    )
    found = [f"Gains are points above the untouched model, {by}. Intervals are 95%."]
    if board.excluded:
        left = f"{sum(board.excluded.values())} of {board.runs} runs"
        found.append(
            f"{left} say nothing of their agent and are not counted: {format_exclusions(board.excluded)}."
        )
    if any(isinstance(row.place.rank, str) for row in board.rows):
        found.append(
            f"{NONE} for a rank: not enough runs to say. It needs two runs of each task, and five in all."
        )
    return found


def render_markdown(board: Leaderboard, below: Sequence[str] | None = None) -> str:
    """With all its notes below, or with these."""
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


def format_figure(found: IntervalEstimate | None) -> str:
    if found is None:
        return NONE
    if not isinstance(found.interval, Interval):
        return formatting.format_points(found.value)
    return f"{formatting.format_points(found.value)} [{found.interval.low:.1f}, {found.interval.high:.1f}]"


def format_cell(found: Cell | None) -> str:
    return formatting.format_points(found.mean.value) if found and found.mean else NONE


def format_success(found: GainTally) -> str:
    return NONE if found.succeeded is None else f"{found.succeeded} of {found.n}"


def format_run_count(found: GainTally) -> str:
    left = sum(found.excluded.values())
    beside = [f"+{left}"] if left else []
    beside += [f"{found.contaminated} {MARK}"] if found.contaminated else []
    return f"{found.n} ({', '.join(beside)})" if beside else str(found.n)


def mark_name(name: str, contaminated: int) -> str:
    """With a mark where contaminated runs are part of it; in front, where no figure cuts it off."""
    return f"{MARK} {name}" if contaminated else name


def format_cost(row: LeaderboardRow) -> str:
    if row.cost is None:
        return NONE
    parts = [formatting.format_duration(row.cost.seconds)]
    if row.cost.tokens:
        parts.append(f"{row.cost.tokens / 1e3:,.0f}k tokens")
        parts.append("$?" if row.cost.usd is None else f"${row.cost.usd:.2f}")
    return ", ".join(parts)


def format_exclusions(excluded: dict[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in excluded.items())


def _render_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escape_cell, cells))} |"


def _escape_cell(text: str) -> str:
    marks = {"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " ", "\r": " "}
    return "".join(marks.get(each, each) for each in formatting.escape_invisible(text))
