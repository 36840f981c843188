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

from agent2rl.campaign.executor import Ended
from agent2rl.campaign.experiments import Cell
from agent2rl.campaign.plan import Plan
from agent2rl.campaign.standing import Standing

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


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole // 60 % 60:02d}m"


def number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def print_plan(plan: Plan) -> None:
    console = _console()
    varied = _varied([run.cell for run in plan.runs])
    table = Table(*varied, "state", "takes", "costs", "score", "")
    for run in plan.runs:
        takes = f"{duration(run.seconds)}{'' if run.beside_known else '+'}"
        table.add_row(
            *(escape(str(run.cell[axis])) for axis in varied),
            _state(run.state) + ("" if not run.chosen else " ←"),
            takes,
            "?" if run.usd is None else f"${run.usd:.2f}" if run.usd else "",
            number(run.score),
            escape(_short(run.detail)),
        )
    console.print(table)
    console.print(_counts(run.state for run in plan.runs))
    chosen = [run for run in plan.runs if run.chosen]
    if not chosen:
        console.print("nothing to run")
        return
    cost = f"${plan.usd:,.2f}" + (f" and {plan.usd_unknown} of unknown cost" if plan.usd_unknown else "")
    wall = f", {duration(plan.wall_seconds)} with {plan.parallel} at once" if plan.wall_seconds else ""
    console.print(f"to run (←): {len(chosen)}, {duration(plan.run_seconds)} together{wall}, {cost}")
    if not all(run.beside_known for run in chosen):
        console.print("+: and set-up and grading, which no earlier run of the task tells of")


def print_standings(standings: Sequence[Standing]) -> None:
    _console().print(_table(standings, len(standings)))


class Watch:
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

    def show(self, standings: Sequence[Standing]) -> None:
        self._looked = time.monotonic()
        if self._live:
            self._live.update(_table(standings, max(3, self._console.height - BESIDE)), refresh=True)
            return
        for one in standings:
            before = self._states.get(one.experiment.id)
            self._states[one.experiment.id] = one.state
            if before is not None and before != one.state and one.state == "running":
                self.say(f"running  {_told(one.experiment.cell)}")

    def ended(self, ended: Iterable[Ended], standings: Sequence[Standing]) -> None:
        cells = {one.experiment.id: one for one in standings}
        for each in ended:
            one, outcome = cells[each.job.experiment], each.outcome
            score = f"  {number(one.run.score)}" if one.run and one.run.score is not None else ""
            gain = f" ({one.run.improvement:+.2f})" if one.run and one.run.improvement is not None else ""
            what = outcome.ending or outcome.kind
            said = f"  {_short(outcome.message)}" if outcome.message else ""
            self.say(
                f"{what}  {_told(one.experiment.cell)}{score}{gain}{said}  {outcome.run_id or ''}".rstrip()
            )

    def say(self, line: str) -> None:
        seconds = int(time.monotonic() - self._began)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        self._console.print(Text.assemble((clock, "dim"), "  ", _plain(line)))

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()


def _console() -> Console:
    """Where there is no terminal, nobody's window is too narrow."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def _table(standings: Sequence[Standing], rows: int) -> RenderableType:
    """Where not all fit, those that are going come first, then those that went wrong."""
    order = {"running": 0, "crashed": 1, "failed": 2, "stopped": 3, "todo": 4, "done": 5}
    shown = list(standings)
    if len(shown) > rows:
        shown = sorted(standings, key=lambda one: order[one.state])[:rows]
    varied = _varied([one.experiment.cell for one in standings])
    table = Table(*varied, "state", "time", "score", "gain", "")
    for one in shown:
        run = one.run
        table.add_row(
            *(escape(str(one.experiment.cell[axis])) for axis in varied),
            _state(one.state),
            duration(run.seconds if run else None),
            number(run.score if run else None),
            number(run.improvement if run else None, "+.2f"),
            escape(_short(one.detail)),
        )
    more = len(standings) - len(shown)
    counts = _counts(one.state for one in standings) + (f"; {more} not shown" if more else "")
    return Group(table, Text.from_markup(counts))


def _varied(cells: Sequence[Cell]) -> list[str]:
    """The axes that tell the rows apart."""
    axes = list(cells[0])
    return [axis for axis in axes if len({cell[axis] for cell in cells}) > 1] or axes[:1]


def _counts(states: Iterable[str]) -> str:
    found = Counter(states)
    return ", ".join(f"{found[state]} {_state(state)}" for state in COLOURS if found[state])


def _state(state: str) -> str:
    return f"[{COLOURS[state]}]{state}[/{COLOURS[state]}]"


def _told(cell: Cell) -> str:
    return " ".join(str(value) for value in cell.values() if value != "")


def _short(text: str) -> str:
    plain = _plain(" ".join(text.split()))
    return plain if len(plain) <= SAID else f"{plain[: SAID - 1]}…"


def _plain(text: str) -> str:
    """What an agent wrote must not steer the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)
