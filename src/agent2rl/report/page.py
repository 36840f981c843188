"""The report of a run: report.json, report.md and figures, from the run directory alone, the same anew."""

import importlib
from pathlib import Path

from agent2rl.core.records import Contamination, Record, RunResult, RunSpec, Score, Submission
from agent2rl.report import tables
from agent2rl.store.files import write_atomically, write_record
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import RunView, read_run


class Report(Record):
    """Everything the page shows."""

    version: int = 1
    run_id: str
    state: str
    spec: RunSpec
    baseline: Score | None
    submissions: tuple[Submission, ...]
    contamination: Contamination | None
    result: RunResult | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, view: RunView) -> "Report":
        return cls(
            run_id=view.paths.run_id,
            state=view.state,
            spec=view.spec,
            baseline=view.baseline,
            submissions=view.submissions,
            contamination=view.contamination,
            result=view.result,
            notes=view.notes,
        )


def write(paths: RunPaths) -> Path:
    """Write the report and return the page for people."""
    view = read_run(paths)
    paths.report.mkdir(exist_ok=True)
    write_record(paths.report / "report.json", Report.of(view))
    figures = paths.report / "figures"
    figures.mkdir(exist_ok=True)
    plots = importlib.import_module("agent2rl.report.plots")  # matplotlib takes a second to load
    drawn = plots.scores(view, figures / "scores.svg")
    page = paths.report / "report.md"
    write_atomically(page, _markdown(view, drawn))
    return page


def _markdown(view: RunView, drawn: bool) -> str:
    lines = [f"# {view.paths.run_id}", "", "| | |", "|---|---|"]
    lines += [_row(row) for row in tables.headline(view)]
    lines += ["", "## Submissions", ""]
    lines += ["![Scores of the submissions over time](figures/scores.svg)", ""] if drawn else []
    rows = tables.submissions(view)
    if rows:
        lines += [_row(tables.SUBMISSION_COLUMNS), "|" + "---|" * len(tables.SUBMISSION_COLUMNS)]
        lines += [_row(row) for row in rows]
        lines += ["", "\\* chosen by the feedback split. Scores are percentages.", ""]
        lines += [f"- {number}: {_text(message)}" for number, message in tables.messages(view)]
    else:
        lines.append("None.")
    kinds = tables.kinds(view)
    if kinds:
        lines += ["", "## By kind of example", "", _row(tables.KIND_COLUMNS), "|---|---|---|"]
        lines += [_row(row) for row in kinds]
    if view.contamination and view.contamination.done:
        lines += _contamination(view, view.contamination)
    return "\n".join(lines) + "\n"


def _contamination(view: RunView, found: Contamination) -> list[str]:
    lines = ["", "## Evaluation data in what the agent left", "", f"{tables.contamination(found)}.", ""]
    lines.append(
        f"A passage counts from {found.share:.0%} of the {found.ngram_words}-word sequences of an example's "
        f"prompt or answer on, or from {found.run_words} words in a row. {found.unchecked} of "
        f"{found.examples} examples cannot be looked for. "
        f"{tables.size(found.tensor_bytes)} of model weights were passed over."
    )
    for columns, rows in (
        (tables.FINDING_COLUMNS, tables.findings(view)),
        (tables.LEFT_OUT_COLUMNS, tables.left_out(view)),
    ):
        if rows:
            lines += ["", _row(columns), "|" + "---|" * len(columns), *map(_row, rows)]
    if found.found > len(found.findings):
        lines += ["", f"The first {len(found.findings)} of {found.found} are listed."]
    return lines


def _row(cells: tuple[str, ...]) -> str:
    """A table row in which nothing that an agent wrote can break out of its cell."""
    return "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _text(cell: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in cell)
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("[", "&#91;"), ("`", "&#96;")):
        printable = printable.replace(mark, entity)
    return printable
