"""Tables of a paper: the leaderboard and comparisons as LaTeX, for \\input into a document with booktabs.

Names come from agents and users, so every character that LaTeX would take for a command is escaped.
"""

from collections.abc import Sequence

from agent2rl.analysis.campaigns.comparisons import ComparisonFamily
from agent2rl.analysis.campaigns.leaderboard import Leaderboard
from agent2rl.report import formatting, leaderboard_table

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "−": "$-$",
    "–": "--",
    "±": r"$\pm$",
    formatting.CONTAMINATED_MARK: r"\dag{}",
}
PRINTABLE = range(0x20, 0x7F)


def render_leaderboard(board: Leaderboard) -> str:
    """Render the leaderboard as a table environment, with its notes as the caption."""
    columns = leaderboard_table.list_columns(board)
    align = "".join("l" if name == "entry" else "r" for name in columns)
    notes = leaderboard_table.build_notes(board)
    return render_table(columns, leaderboard_table.build_rows(board), align, " ".join(notes), "leaderboard")


def render_comparisons(family: ComparisonFamily) -> str:
    """Render all pairs of one axis: the difference of their mean gains with its interval."""
    rows = [
        (
            formatting.shorten_name(each.first or "none"),
            formatting.shorten_name(each.second or "none"),
            f"{each.found.n[0]} / {each.found.n[1]}",
            leaderboard_table.format_figure(each.found.difference),
            _format_p_value(each.found.p_value),
            _format_p_value(each.p_holm),
        )
        for each in family.pairs
    ]
    caption = (
        "Difference of mean gains (first minus second) in points, with 95% intervals, all else equal. "
        "Holm's correction is for all pairs of the table."
    )
    columns = (family.axis, "compared with", "runs", "difference", "p", "p (Holm)")
    return render_table(columns, rows, "llrrrr", caption, f"comparisons-{family.axis}")


def _format_p_value(value: float | None) -> str:
    if value is None:
        return leaderboard_table.NONE
    return formatting.format_p_value(value).removeprefix("p ").removeprefix("= ")


def render_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], align: str, caption: str, label: str
) -> str:
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _render_row(columns),
        r"\midrule",
        *map(_render_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\label{{tab:{label}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _render_row(cells: Sequence[str]) -> str:
    # A bracket right after the end of a row would be read as its argument, so empty braces come first.
    return f"{{}}{' & '.join(map(escape_latex, cells))} \\\\"


def escape_latex(text: str) -> str:
    """Return one line without commands. Characters that no common font has become question marks."""
    line = " ".join(text.split())
    return "".join(ESCAPES.get(each, each if ord(each) in PRINTABLE else "?") for each in line)
