"""What `run` and `resume` share: a run goes, is watched, can be stopped, and is shown at its end."""

import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from agent2rl.cli.terminal_output import TerminalProgress, print_run
from agent2rl.core.events import TimelineEvent
from agent2rl.report import export, run_report
from agent2rl.runner.run import FinishedRun
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import read_run
from agent2rl.store.recorder import Notify
from agent2rl.tracking import mirror
from agent2rl.tracking.tracker_processes import TrackerProcesses, get_started_run_id


@dataclass(frozen=True)
class RunOutputOptions:
    """Who hears of a run, and what is left when it is over."""

    as_json: bool
    no_report: bool
    track: Sequence[str] = ()
    track_group: str | None = None


def run_and_report(
    runs: Path, telling: RunOutputOptions, work: Callable[[Notify, threading.Event], FinishedRun]
) -> NoReturn:
    for name in telling.track:
        mirror.require_tracker(name)
    stop = threading.Event()
    _stop_on_signals(stop)
    as_json = telling.as_json
    if not as_json:
        click.echo(f"watch:  {_format_view_command(runs)}", err=True)
    with TrackerProcesses(telling.track, telling.track_group, _print_tracker_line) as children:
        with TerminalProgress(as_json, runs) as progress:
            finished = work(_combine_listeners(progress.handle_event, children, runs), stop)
        export.update_results_csv(finished.paths)
        if as_json:
            click.echo(finished.result.model_dump_json())
        else:
            print_run(read_run(finished.paths))
        told = None if telling.no_report else _write_report(finished.paths)
        if not as_json:
            click.echo(f"report: {_shorten_path(told)}" if told else "report: agent2rl report latest")
            click.echo(f"view:   {_format_view_command(runs)}")
            click.echo(f"ledger: {finished.ledger_head}")
    sys.exit(130 if finished.result.ending == "interrupted" else 0 if finished.result.ended_well else 1)


def _combine_listeners(notify: Notify, children: TrackerProcesses, runs: Path) -> Notify:
    """Progress hears of every event; trackers read the run directory, and need to know that it is there."""

    def told(event: TimelineEvent) -> None:
        notify(event)
        if run := get_started_run_id(event):
            children.start(RunPaths(runs / run))

    return told


def _print_tracker_line(line: str) -> None:
    click.echo(f"tracking with {line}", err=True)


def _write_report(paths: RunPaths) -> Path | None:
    """Where it is; a report that cannot be made costs the run nothing."""
    try:
        run_report.write_report(paths)
    except Exception as error:
        click.echo(f"warning: no report was made: {type(error).__name__}: {error}", err=True)
        click.echo("         The run's record is whole; `agent2rl report` tries again.", err=True)
        return None
    return paths.report_page


def _stop_on_signals(stop: threading.Event) -> None:
    """The first Ctrl-C ends the run in order; the second one ends it at once."""

    def handle(_: int, __: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("stopping: the agent is ended and the record closed (once more to abandon it)", err=True)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _format_view_command(runs: Path) -> str:
    """What shows the runs in a browser, as this program was called."""
    called = Path(sys.argv[0])
    hidden = called.name == "agent2rl" and shutil.which("agent2rl") is None
    program = _shorten_path(called.absolute()) if hidden else "agent2rl"
    return shlex.join([str(program), "view", str(_shorten_path(runs.absolute()))])


def _shorten_path(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
