"""How campaigns look in a terminal."""

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
from agent2rl.campaign.plan import CampaignPlan

COLOURS = {
    "todo": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
    "crashed": "yellow",
}
LOOK_SECONDS = 2.0
SAID = 90
PLAIN_WIDTH = 160
BESIDE = 6
"""Lines of a screen that are not rows."""


def format_duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole // 60 % 60:02d}m"


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
    cost = f"${plan.usd:,.2f}" + (f" and {plan.usd_unknown} of unknown cost" if plan.usd_unknown else "")
    wall = f", {format_duration(plan.wall_seconds)} with {plan.parallel} at once" if plan.wall_seconds else ""
    console.print(f"to run (←): {len(chosen)}, {format_duration(plan.run_seconds)} together{wall}, {cost}")
    if not all(run.beside_known for run in chosen):
        console.print("+: and set-up and grading, which no earlier run of the task tells of")


def print_statuses(standings: Sequence[ExperimentStatus]) -> None:
    _make_console().print(_make_status_table(standings, len(standings)))


class CampaignDisplay:
    """A live table on a terminal; elsewhere a line for each thing that happens."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._began, self._looked = time.monotonic(), -LOOK_SECONDS
        self._states: dict[str, str] = {}

    @property
    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() - self._looked >= LOOK_SECONDS

    def show_statuses(self, standings: Sequence[ExperimentStatus]) -> None:
        self._looked = time.monotonic()
        if self._live:
            self._live.update(
                _make_status_table(standings, max(3, self._console.height - BESIDE)), refresh=True
            )
            return
        for one in standings:
            before = self._states.get(one.experiment.id)
            self._states[one.experiment.id] = one.state
            if before is not None and before != one.state and one.state == "running":
                self.print_line(f"running  {_format_cell_values(one.experiment.cell)}")

    def print_ended_jobs(self, ended: Iterable[EndedJob], standings: Sequence[ExperimentStatus]) -> None:
        cells = {one.experiment.id: one for one in standings}
        for each in ended:
            one, outcome = cells[each.job.experiment], each.outcome
            score = f"  {format_number(one.run.score)}" if one.run and one.run.score is not None else ""
            gain = f" ({one.run.improvement:+.2f})" if one.run and one.run.improvement is not None else ""
            what = outcome.ending or outcome.kind
            said = f"  {_shorten_text(outcome.message)}" if outcome.message else ""
            self.print_line(
                f"{what}  {_format_cell_values(one.experiment.cell)}"
                f"{score}{gain}{said}  {outcome.run_id or ''}".rstrip()
            )

    def print_line(self, line: str) -> None:
        seconds = int(time.monotonic() - self._began)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        self._console.print(Text.assemble((clock, "dim"), "  ", _sanitize_line(line)))

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
    """Where there is no terminal, nobody's window is too narrow."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def _make_status_table(standings: Sequence[ExperimentStatus], rows: int) -> RenderableType:
    """Where not all fit, those that are going come first, then those that went wrong."""
    order = {"running": 0, "crashed": 1, "failed": 2, "stopped": 3, "todo": 4, "done": 5}
    shown = list(standings)
    if len(shown) > rows:
        shown = sorted(standings, key=lambda one: order[one.state])[:rows]
    varied = _find_varied_axes([one.experiment.cell for one in standings])
    table = Table(*varied, "state", "time", "score", "gain", "")
    for one in shown:
        run = one.run
        table.add_row(
            *(escape(str(one.experiment.cell[axis])) for axis in varied),
            _format_state(one.state),
            format_duration(run.seconds if run else None),
            format_number(run.score if run else None),
            format_number(run.improvement if run else None, "+.2f"),
            escape(_shorten_text(one.detail)),
        )
    more = len(standings) - len(shown)
    counts = _format_counts(one.state for one in standings) + (f"; {more} not shown" if more else "")
    return Group(table, Text.from_markup(counts))


def _find_varied_axes(cells: Sequence[Cell]) -> list[str]:
    """The axes that tell the rows apart."""
    axes = list(cells[0])
    return [axis for axis in axes if len({cell[axis] for cell in cells}) > 1] or axes[:1]


def _format_counts(states: Iterable[str]) -> str:
    found = Counter(states)
    return ", ".join(f"{found[state]} {_format_state(state)}" for state in COLOURS if found[state])


def _format_state(state: str) -> str:
    return f"[{COLOURS[state]}]{state}[/{COLOURS[state]}]"


def _format_cell_values(cell: Cell) -> str:
    return " ".join(str(value) for value in cell.values() if value != "")


def _shorten_text(text: str) -> str:
    plain = _sanitize_line(" ".join(text.split()))
    return plain if len(plain) <= SAID else f"{plain[: SAID - 1]}…"


def _sanitize_line(text: str) -> str:
    """What an agent wrote must not steer the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)
