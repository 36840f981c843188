"""Terminal output of campaigns: the plan, the table of states, and the live display."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from agent2rl.campaign.campaign_file import Cell
from agent2rl.campaign.experiment_status import ExperimentStatus
from agent2rl.campaign.jobs import EndedJob
from agent2rl.campaign.plan import CampaignPlan, DriverCost
from agent2rl.cli.terminal_output import sanitize_one_line

COLOURS = {
    "todo": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
    "crashed": "yellow",
}
REFRESH_SECONDS = 2.0
DETAIL_CHARACTERS = 90
PLAIN_WIDTH = 160
NON_ROW_LINES = 6
"""Lines of the screen that are not table rows."""


def format_duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60}m{rounded % 60:02d}s"
    return f"{rounded // 3600}h{rounded // 60 % 60:02d}m"


def format_number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def print_plan(plan: CampaignPlan) -> None:
    console = _make_console()
    varied = _find_varied_axes([run.cell for run in plan.runs])
    table = Table(*varied, "state", "takes", "costs", "score", "")
    for run in plan.runs:
        takes = f"{format_duration(run.seconds)}{'' if run.beside_known else '+'}"
        table.add_row(
            *(escape(str(run.cell[axis])) for axis in varied),
            _format_state(run.state) + ("" if not run.chosen else " ←"),
            takes,
            "?" if run.usd is None else f"${run.usd:.2f}" if run.usd else "",
            format_number(run.score),
            escape(_shorten_text(run.detail)),
        )
    console.print(table)
    console.print(_format_counts(run.state for run in plan.runs))
    chosen = [run for run in plan.runs if run.chosen]
    if not chosen:
        console.print("nothing to run")
        return
    for line in format_cost_lines(plan):
        console.print(line, markup=False)
    wall = f", {format_duration(plan.wall_seconds)} with {plan.parallel} at once" if plan.wall_seconds else ""
    console.print(f"time (←): {format_duration(plan.run_seconds)} together{wall}")
    if not all(run.beside_known for run in chosen):
        console.print("+: plus set-up and grading; no earlier run of the task shows how long they take")


def format_cost_lines(plan: CampaignPlan) -> list[str]:
    """Return what the chosen runs cost: their number, GPU hours, and dollars by driver."""
    chosen = sum(run.chosen for run in plan.runs)
    part = ""
    if plan.fraction is not None:
        part = f" (a fraction of {plan.fraction:g}: {len(plan.runs)} of {plan.whole} experiments)"
    gpu = f"{plan.gpu_hours:,.1f} GPU hours" if plan.gpus else "no GPU"
    bound = "at most " if all(cost.at_most for cost in plan.drivers if cost.driver) and plan.usd else ""
    usd = _format_usd(plan.usd, plan.usd_unknown)
    lines = [f"to run (←): {chosen}{part}, {gpu}, {bound}{usd}"]
    for cost in plan.drivers:
        if cost.driver:
            runs = "1 run" if cost.runs == 1 else f"{cost.runs} runs"
            bound = "at most " if cost.at_most else ""
            usd = _format_usd(cost.usd, cost.usd_unknown)
            lines.append(f"  {sanitize_one_line(cost.driver)}: {runs}, {bound}{usd} ({_format_price(cost)})")
    if plan.judges:
        judges = ", ".join(sanitize_one_line(name) for name in plan.judges)
        lines.append(f"  not included: what the judges cost ({judges})")
    return lines


def _format_usd(usd: float, unknown: int) -> str:
    if not unknown:
        return f"${usd:,.2f}"
    runs = "1 run" if unknown == 1 else f"{unknown} runs"
    return f"${usd:,.2f} and {runs} of unknown cost" if usd else f"unknown cost of {runs}"


def _format_price(cost: DriverCost) -> str:
    if cost.usd_per_million_input is None or cost.usd_per_million_output is None:
        return "price unknown"
    return (
        f"${cost.usd_per_million_input:.2f} in and ${cost.usd_per_million_output:.2f} out per million tokens"
    )


def print_statuses(statuses: Sequence[ExperimentStatus]) -> None:
    _make_console().print(_make_status_table(statuses, len(statuses)))


class CampaignDisplay:
    """Shows a live table on a terminal, and one line per event elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._began, self._looked = time.monotonic(), -REFRESH_SECONDS
        self._states: dict[str, str] = {}

    @property
    def due(self) -> bool:
        """Whether it is time to refresh the table."""
        return time.monotonic() - self._looked >= REFRESH_SECONDS

    def show_statuses(self, statuses: Sequence[ExperimentStatus]) -> None:
        self._looked = time.monotonic()
        if self._live:
            self._live.update(
                _make_status_table(statuses, max(3, self._console.height - NON_ROW_LINES)), refresh=True
            )
            return
        for status in statuses:
            before = self._states.get(status.experiment.id)
            self._states[status.experiment.id] = status.state
            if before is not None and before != status.state and status.state == "running":
                self.print_line(f"running  {_format_cell_values(status.experiment.cell)}")

    def print_ended_jobs(self, ended: Iterable[EndedJob], statuses: Sequence[ExperimentStatus]) -> None:
        by_experiment = {status.experiment.id: status for status in statuses}
        for job in ended:
            run, outcome = by_experiment[job.job.experiment].run, job.outcome
            score = f"  {format_number(run.score)}" if run and run.score is not None else ""
            gain = f" ({run.improvement:+.2f})" if run and run.improvement is not None else ""
            ending = outcome.ending or outcome.kind
            message = f"  {_shorten_text(outcome.message)}" if outcome.message else ""
            self.print_line(
                f"{ending}  {_format_cell_values(by_experiment[job.job.experiment].experiment.cell)}"
                f"{score}{gain}{message}  {outcome.run_id or ''}".rstrip()
            )

    def print_line(self, line: str) -> None:
        seconds = int(time.monotonic() - self._began)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        self._console.print(Text.assemble((clock, "dim"), "  ", sanitize_one_line(line)))

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()


def _make_console() -> Console:
    """Return a console for stdout. Without a terminal, it is wide, so that tables do not wrap."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def _make_status_table(statuses: Sequence[ExperimentStatus], rows: int) -> RenderableType:
    """If not all rows fit, show running experiments first, then those that went wrong."""
    order = {"running": 0, "crashed": 1, "failed": 2, "stopped": 3, "todo": 4, "done": 5}
    shown = list(statuses)
    if len(shown) > rows:
        shown = sorted(statuses, key=lambda status: order[status.state])[:rows]
    varied = _find_varied_axes([status.experiment.cell for status in statuses])
    table = Table(*varied, "state", "time", "score", "gain", "")
    for status in shown:
        run = status.run
        table.add_row(
            *(escape(str(status.experiment.cell[axis])) for axis in varied),
            _format_state(status.state),
            format_duration(run.seconds if run else None),
            format_number(run.score if run else None),
            format_number(run.improvement if run else None, "+.2f"),
            escape(_shorten_text(status.detail)),
        )
    hidden = len(statuses) - len(shown)
    counts = _format_counts(status.state for status in statuses) + (f"; {hidden} not shown" if hidden else "")
    return Group(table, Text.from_markup(counts))


def _find_varied_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the axes with more than one value, which distinguish the rows."""
    axes = list(cells[0])
    return [axis for axis in axes if len({cell[axis] for cell in cells}) > 1] or axes[:1]


def _format_counts(states: Iterable[str]) -> str:
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {_format_state(state)}" for state in COLOURS if counts[state])


def _format_state(state: str) -> str:
    return f"[{COLOURS[state]}]{state}[/{COLOURS[state]}]"


def _format_cell_values(cell: Cell) -> str:
    return " ".join(str(value) for value in cell.values() if value != "")


def _shorten_text(text: str) -> str:
    plain = sanitize_one_line(" ".join(text.split()))
    return plain if len(plain) <= DETAIL_CHARACTERS else f"{plain[: DETAIL_CHARACTERS - 1]}…"
