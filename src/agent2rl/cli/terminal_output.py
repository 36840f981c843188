"""Terminal output of runs: progress while they run, tables when they are done.

Progress goes to stderr: a live line on a terminal, plain lines elsewhere, nothing with --json. While the
agent works, the last line of its output is shown: live on a terminal, every half minute elsewhere.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import JsonValue
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from agent2rl.cli.elapsed_clock import format_elapsed_time
from agent2rl.core.audit_records import FLAG_NAMES, Audit
from agent2rl.core.events import TimelineEvent
from agent2rl.core.grading_records import ContaminationSummary, ExampleResult
from agent2rl.core.records import Isolation, Rollouts
from agent2rl.record.files import open_regular_file
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView
from agent2rl.report import descriptions, tables

# Following the last line of a file that another process writes

TAIL_BYTES = 4096
"""How much of the end of the file is read; a longer line is cut."""


class LogTail:
    """Thread that reports each new last line of a file, at most once per interval. Skips lines in between."""

    def __init__(self, path: Path, report: Callable[[str], None], every_seconds: float) -> None:
        self._path, self._report, self._every = path, report, every_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll_last_line, daemon=True)

    def _poll_last_line(self) -> None:
        last_line = ""
        while not self._end.wait(self._every):
            line = read_last_line(self._path)
            if line and line != last_line:
                self._report(line)
                last_line = line

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()


def read_last_line(path: Path) -> str:
    """Return the last complete line that is not empty, or an empty string."""
    try:
        with open_regular_file(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            complete_lines = file.read().rpartition(b"\n")[0]
    except OSError:
        return ""
    lines = complete_lines.decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


# Progress of a run

PHASES = {
    "self-test": "testing the sandbox",
    "assets": "preparing model and data",
    "baseline": "grading the base model ({split})",
    "held-out": "grading submission {submission} (heldout)",
    "also": "grading the untouched model and the best submission on {task}",
    "contamination": "looking for evaluation data in the agent's files",
}
ENDS = {
    "exited": "exit code {code}",
    "deadline": "its time budget is used up",
    "stopped": "the run was stopped",
}


LIVE_SECONDS, PLAIN_SECONDS = 1.0, 30.0
PREVIEW_CHARACTERS = 80
"""Length of an answer in a list."""


class TerminalProgress:
    """Prints the events of a run as they happen."""

    def __init__(self, quiet: bool, runs: Path) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._live = Status("starting", console=self._console) if self._console.is_terminal else None
        self._runs, self._log = runs, Path()
        self._following = ExitStack()

    def handle_event(self, event: TimelineEvent) -> None:
        line = describe_event(event)
        if event.kind in ("opened", "resumed"):
            self._log = RunPaths(self._runs / str(event.data["run_id"])).agent_log
        if event.kind == "started":
            every = LIVE_SECONDS if self._live else PLAIN_SECONDS
            self._following.enter_context(LogTail(self._log, self._show_agent_line, every))
        if event.kind == "ended":
            self._following.close()
        if line:
            self._print_line(sanitize_one_line(line))
            if self._live:
                self._live.update(escape(_describe_activity(event) or sanitize_one_line(line)))

    def _show_agent_line(self, line: str) -> None:
        if self._live:
            width = max(20, self._console.width - 20)
            self._live.update(f"the agent is working: [dim]{escape(sanitize_one_line(line)[:width])}[/dim]")
        else:
            self._print_line(f"agent: {sanitize_one_line(line)}")

    def _print_line(self, line: str) -> None:
        self._console.print(f"[dim]{format_elapsed_time()}[/dim]  {escape(line)}")

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._following.close()
        if self._live:
            self._live.stop()


def describe_event(event: TimelineEvent) -> str:
    """Return a line of text about an event, or an empty string for an event that is not shown."""
    data = event.data
    match event.kind:
        case "opened":
            return f"run {data['run_id']}"
        case "resumed":
            return _describe_resume(data)
        case "phase":
            return PHASES.get(str(data["name"]), "{name}").format(**data)
        case "preparing":
            return str(data["text"])
        case "isolation":
            return _describe_isolation(Isolation.model_validate(data))
        case "baseline":
            cached = ", cached" if data["cached"] else ""
            return f"baseline {_format_score(data['score'])} ({data['split']}{cached})"
        case "started":
            return "agent started"
        case "submitted" | "graded":
            return _describe_submission(event.kind, data["submission"])
        case "ended":
            how = ENDS.get(str(data["reason"]), "{reason}").format(**data)
            return f"agent ended: {data['detail'] or how}"
        case "heldout":
            return f"held-out {_format_score(data['score'])} (submission {data['submission']})"
        case "contamination":
            summary = {name: data[name] for name in ContaminationSummary.model_fields}
            contamination = ContaminationSummary.model_validate(summary)
            return f"contamination: {descriptions.describe_contamination(contamination)}"
        case "warning":
            return f"warning: {data['text']}"
        case "fault":
            return f"fault in {data['where']}: {data['trace']}"
    return ""


def _describe_activity(event: TimelineEvent) -> str:
    match event.kind:
        case "started" | "graded":
            return "the agent is working"
        case "submitted":
            return "grading"
    return ""


def _describe_submission(kind: str, submission: object) -> str:
    if not isinstance(submission, dict):
        return ""
    name = f"submission {submission['id']}"
    if kind == "submitted":
        return f"{name} accepted: {submission['path']}"
    score = f" {_format_score(submission['score'])}" if submission["score"] else ""
    gain = submission["improvement"]
    change = f" ({gain:+.2f})" if isinstance(gain, float) else ""
    message = f": {submission['message']}" if submission["message"] else ""
    return f"{name} {submission['verdict']}{score}{change}{message}"


def _describe_isolation(isolation: Isolation) -> str:
    if not isolation.isolates:
        return f"sandbox {isolation.sandbox}: isolates NOTHING"
    text = f"sandbox {isolation.sandbox}: {len(isolation.promises)} promises tested"
    if isolation.not_kept:
        names = "; ".join(promise.name for promise in isolation.not_kept)
        text += f", isolates IN PART, {len(isolation.not_kept)} not kept ({names})"
    reason = f"Chosen because {isolation.reason}" if isolation.reason else ""
    return ". ".join(part for part in (text, reason, isolation.remedy) if part)


def _describe_resume(data: Mapping[str, JsonValue]) -> str:
    repairs = data["mended"] if isinstance(data["mended"], list) else []
    details = [f"{data['ungraded']} submissions to grade", *map(str, repairs)]
    return (
        f"run {data['run_id']} continues: the agent has used {data['used_seconds']:.0f} s, "
        f"the run was down for {data['dead_seconds']:.0f} s; {'; '.join(details)}"
    )


def _format_score(score: object) -> str:
    if not isinstance(score, dict) or not isinstance(score["ci"], dict):
        return ""
    return f"{score['value']:.2f} [{score['ci']['low']:.1f}, {score['ci']['high']:.1f}]"


def print_examples(results: Sequence[ExampleResult]) -> None:
    """Print each example of a submission on one line."""
    console = Console(highlight=False, soft_wrap=True)
    width = max((len(result.group) for result in results), default=0)
    for number, result in enumerate(results, start=1):
        turns = f"{len(result.trajectory) - 1} turns" if result.trajectory else ""
        preview = " ".join((result.note or result.output).split())[:PREVIEW_CHARACTERS]
        line = f"{number:4}  {result.score:5.3g}  {turns:8}  {result.group:{width}}  {result.id}  {preview}"
        console.print(Text(sanitize_one_line(line)))


def print_episode(number: int, result: ExampleResult) -> None:
    """Print one example in full. The model's text is never read as markup, wherever its lines end."""
    console = Console(highlight=False, soft_wrap=True)
    kind = f" ({result.group})" if result.group else ""
    console.print(Text.assemble((str(number), "bold"), "  ", sanitize_one_line(result.id + kind), "\n"))
    if not result.trajectory:
        console.print(Text(sanitize_lines(result.output)))
    for turn in result.trajectory:
        if turn.reply:
            console.print(Text(sanitize_lines(turn.reply), "dim"))
        if turn.action:
            console.print(Text(f"> {sanitize_lines(turn.action)}", "bold"))
        console.print(Text(f"{sanitize_lines(turn.observation)}\n"))
    note = f"; {sanitize_one_line(result.note)}" if result.note else ""
    console.print(Text(f"score {result.score:g}{note}"))


def sanitize_lines(text: str) -> str:
    """Replace control characters in each line of a text, so that it cannot control the terminal."""
    return "\n".join(sanitize_one_line(line) for line in text.split("\n"))


def print_run(view: RunView, rollouts: Rollouts | None = None) -> None:
    """Print the results of a run and its submissions; `rollouts` as in `build_headline_rows`."""
    console = Console(highlight=False)
    head = Table(show_header=False, box=None, padding=(0, 1))
    for row in tables.build_headline_rows(view, rollouts):
        head.add_row(f"[bold]{escape(row[0])}[/bold]", *(escape(sanitize_one_line(cell)) for cell in row[1:]))
    console.print(head)
    listed = (
        (tables.SUBMISSION_COLUMNS, tables.build_submission_rows(view)),
        (tables.KIND_COLUMNS, tables.build_kind_rows(view)),
    )
    for columns, rows in listed:
        if rows:
            table = Table(*columns)
            for row in rows:
                table.add_row(*(escape(sanitize_one_line(cell)) for cell in row))
            console.print(table)
    for number, message in tables.list_messages(view):
        lines = sanitize_lines(message).replace("\n", "\n   ")  # so that none looks like another message
        console.print(f"[bold]{number}[/bold]: {escape(lines)}")


def print_audit(audit: Audit) -> None:
    """Print the flags of an audit with their quotes."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(sanitize_one_line(descriptions.describe_audit(audit))))
    for flag in audit.flags:
        console.print(Text(f"\n{FLAG_NAMES[flag.kind]}", "bold"))
        for statement in flag.statements:
            console.print(Text(f"  {sanitize_one_line(statement)}"))
        for quote in flag.quotes:
            cited_line = f"  {quote.document}, line {quote.line}: {quote.text}"
            console.print(Text(sanitize_one_line(cited_line), "dim"))


def sanitize_one_line(text: str) -> str:
    """Return a text as one line without control characters: it must not control the terminal."""
    return "".join(each if each.isprintable() else " " if each.isspace() else "�" for each in text)
