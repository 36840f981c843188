"""The leaderboard as texts: for terminals, Markdown and pages the same columns."""

from collections.abc import Sequence

from agent2rl.analysis.campaigns.cells import Cell, Tally
from agent2rl.analysis.campaigns.leaderboard import Leaderboard, Row
from agent2rl.analysis.campaigns.resampling import Figure
from agent2rl.core.records import Interval
from agent2rl.report import sheets, tables, words

NONE = "–"
MARK = words.CONTAMINATED_MARK


def columns(board: Leaderboard) -> list[str]:
    return ["rank", "entry", "mean gain", "succeeded", "runs", *board.tasks, "cost of a run"]


def rows(board: Leaderboard) -> list[list[str]]:
    return [
        [
            ranked(row),
            marked_name(row.name, row.all.contaminated),
            figure(row.place.mean),
            succeeded(row.all),
            counted(row.all),
            *(short(row.by_task.get(task)) for task in board.tasks),
            cost(row),
        ]
        for row in board.rows
    ]


def notes(board: Leaderboard) -> list[str]:
    """What a reader must know beside the table."""
    return [*table_notes(board), *contamination_notes(board)]


def contamination_notes(board: Leaderboard) -> list[str]:
    """Which runs are contaminated or may be, and what became of them."""
    found = []
    if many := board.contaminated_left_out:
        are, their = ("is", "its workspace") if many == 1 else ("are", "their workspaces")
        found.append(
            f"{tables.many(many, 'contaminated run')} {are} left out: evaluation data was found in {their}. "
            f"Include {'it' if many == 1 else 'them'} with --include-contaminated."
        )
    if many := board.contaminated:
        are, their = ("is", "its workspace") if many == 1 else ("are", "their workspaces")
        found.append(
            f"{MARK} {tables.many(many, 'contaminated run')} {are} included: evaluation data was found in "
            f"{their}."
        )
    if many := board.contamination_unknown:
        were, it, is_ = ("was", "it", "is") if many == 1 else ("were", "they", "are")
        found.append(
            f"{tables.many(many, 'run')} {were} not searched for evaluation data: whether {it} {is_} "
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
        found.append(f"{left} say nothing of their agent and are not counted: {told(board.excluded)}.")
    if any(isinstance(row.place.rank, str) for row in board.rows):
        found.append(
            f"{NONE} for a rank: not enough runs to say. It needs two runs of each task, and five in all."
        )
    return found


def markdown(board: Leaderboard, below: Sequence[str] | None = None) -> str:
    """With all its notes below, or with these."""
    names = columns(board)
    rule = "|" + "|".join(":--" if name == "entry" else "--:" for name in names) + "|"
    below = notes(board) if below is None else below
    return "\n".join([_line(names), rule, *map(_line, rows(board)), "", *below, ""])


def html(board: Leaderboard) -> str:
    return sheets.render(
        "leaderboard.html.jinja",
        {},
        title="Leaderboard",
        columns=columns(board),
        rows=rows(board),
        board_notes=notes(board),
    )


def ranked(row: Row) -> str:
    rank, interval = row.place.rank, row.place.rank_interval
    if isinstance(rank, str) or isinstance(interval, str):
        return NONE
    return f"{rank:.1f} [{interval[0]:.0f}, {interval[1]:.0f}]"


def figure(found: Figure | None) -> str:
    if found is None:
        return NONE
    if not isinstance(found.interval, Interval):
        return words.points(found.value)
    return f"{words.points(found.value)} [{found.interval.low:.1f}, {found.interval.high:.1f}]"


def short(found: Cell | None) -> str:
    return words.points(found.mean.value) if found and found.mean else NONE


def succeeded(found: Tally) -> str:
    return NONE if found.succeeded is None else f"{found.succeeded} of {found.n}"


def counted(found: Tally) -> str:
    left = sum(found.excluded.values())
    beside = [f"+{left}"] if left else []
    beside += [f"{found.contaminated} {MARK}"] if found.contaminated else []
    return f"{found.n} ({', '.join(beside)})" if beside else str(found.n)


def marked_name(name: str, contaminated: int) -> str:
    """With a mark where contaminated runs are part of it; in front, where no figure cuts it off."""
    return f"{MARK} {name}" if contaminated else name


def cost(row: Row) -> str:
    if row.cost is None:
        return NONE
    parts = [words.duration(row.cost.seconds)]
    if row.cost.tokens:
        parts.append(f"{row.cost.tokens / 1e3:,.0f}k tokens")
        parts.append("$?" if row.cost.usd is None else f"${row.cost.usd:.2f}")
    return ", ".join(parts)


def told(excluded: dict[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in excluded.items())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    marks = {"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " ", "\r": " "}
    return "".join(marks.get(each, each) for each in words.visible(text))
