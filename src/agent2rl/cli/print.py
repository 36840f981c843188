"""How runs look in a terminal: progress while they go, tables when they are done.

Progress goes to stderr: a live line on a terminal, plain lines elsewhere, nothing with --json.
"""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from agent2rl.report import tables
from agent2rl.store.reader import RunView
from agent2rl.store.recorder import Event

PHASES = {
    "self-test": "trying the sandbox's promises",
    "assets": "preparing model and data",
    "baseline": "grading the untouched model ({split})",
    "held-out": "grading submission {submission} (heldout)",
}
ENDS = {
    "exited": "exit code {code}",
    "deadline": "its time is over",
    "stopped": "the run was stopped",
}


class Progress:
    """Says what happens, as it happens."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._live = Status("starting", console=self._console) if self._console.is_terminal else None
        self._began = time.monotonic()

    def notify(self, event: Event) -> None:
        line = describe(event)
        if not line:
            return
        seconds = int(time.monotonic() - self._began)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        line = _plain(line)
        self._console.print(f"[dim]{clock}[/dim]  {escape(line)}")
        if self._live:
            self._live.update(escape(_activity(event) or line))

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()


def describe(event: Event) -> str:
    """One line for people, or nothing."""
    data = event.data
    match event.kind:
        case "opened":
            return f"run {data['run_id']}"
        case "phase":
            return PHASES.get(str(data["name"]), "{name}").format(**data)
        case "isolation":
            promises = data["promises"] if isinstance(data["promises"], list) else []
            return (
                f"sandbox {data['sandbox']}: {len(promises)} promises tried"
                if data["isolates"]
                else (f"sandbox {data['sandbox']}: isolates NOTHING")
            )
        case "baseline":
            return f"baseline {_score(data['score'])} ({data['split']}{', cached' if data['cached'] else ''})"
        case "started":
            return "agent started"
        case "submitted" | "graded":
            return _submission(event.kind, data["submission"])
        case "ended":
            how = ENDS.get(str(data["reason"]), "{reason}").format(**data)
            return f"agent ended: {data['detail'] or how}"
        case "heldout":
            return f"held-out {_score(data['score'])} (submission {data['submission']})"
        case "warning":
            return f"warning: {data['text']}"
        case "fault":
            return f"fault in {data['where']}: {data['trace']}"
    return ""


def _activity(event: Event) -> str:
    match event.kind:
        case "started" | "graded":
            return "the agent works"
        case "submitted":
            return "grading"
    return ""


def _submission(kind: str, submission: object) -> str:
    if not isinstance(submission, dict):
        return ""
    name = f"submission {submission['id']}"
    if kind == "submitted":
        return f"{name} taken in: {submission['path']}"
    score = f" {_score(submission['score'])}" if submission["score"] else ""
    gain = submission["improvement"]
    change = f" ({gain:+.2f})" if isinstance(gain, float) else ""
    message = f": {submission['message']}" if submission["message"] else ""
    return f"{name} {submission['verdict']}{score}{change}{message}"


def _score(score: object) -> str:
    if not isinstance(score, dict) or not isinstance(score["ci"], dict):
        return ""
    return f"{score['value']:.2f} [{score['ci']['low']:.1f}, {score['ci']['high']:.1f}]"


def print_run(view: RunView) -> None:
    """The result table and the submissions."""
    console = Console(highlight=False)
    head = Table(show_header=False, box=None, padding=(0, 1))
    for row in tables.headline(view):
        head.add_row(f"[bold]{escape(row[0])}[/bold]", *(escape(_plain(cell)) for cell in row[1:]))
    console.print(head)
    rows = tables.submissions(view)
    if rows:
        table = Table(*tables.SUBMISSION_COLUMNS)
        for row in rows:
            table.add_row(*(escape(_plain(cell)) for cell in row))
        console.print(table)
    for number, message in tables.messages(view):
        console.print(f"[bold]{number}[/bold]: {escape(_plain(message))}")


def _plain(text: str) -> str:
    """What an agent wrote must not steer the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)
