"""Do the run of `run` and `resume`: show its progress, stop it on signals, print its result, report it."""

import logging
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from agent2rl.cli.terminal_output import TerminalProgress, print_run
from agent2rl.core.events import TimelineEvent
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.record.recorder import Notify
from agent2rl.report import export, page_signature, run_report
from agent2rl.run.execution import FinishedRun
from agent2rl.run.settings import read_settings
from agent2rl.system.unix import require_linux
from agent2rl.trackers import mirror
from agent2rl.trackers.follow import TrackerProcesses, get_started_run_id

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOutputOptions:
    """How to show a run: JSON or text, with or without a report, and in which trackers."""

    as_json: bool
    no_report: bool
    track: Sequence[str] = ()
    track_group: str | None = None


def run_and_report(
    runs: Path, output: RunOutputOptions, work: Callable[[Notify, threading.Event], FinishedRun]
) -> NoReturn:
    """Do the run with progress on stderr, print its result, write its report, and exit."""
    require_linux("Runs")
    for name in output.track:
        mirror.require_tracker(name)
    stop = threading.Event()
    stop_on_signals(stop)
    as_json = output.as_json
    if not as_json:
        click.echo(f"watch:  {_format_view_command(runs)}", err=True)
    with TrackerProcesses(output.track, output.track_group, _print_tracker_line) as children:
        with TerminalProgress(as_json, runs) as progress:
            finished = work(_combine_listeners(progress.handle_event, children, runs), stop)
        export.update_results_csv(finished.paths)
        if as_json:
            click.echo(finished.result.model_dump_json())
        else:
            print_run(read_run(finished.paths))
        report = None if output.no_report else write_run_report(finished.paths)
        if not as_json:
            click.echo(f"report: {_shorten_path(report)}" if report else "report: agent2rl report latest")
            click.echo(f"view:   {_format_view_command(runs)}")
            click.echo(f"ledger: {finished.ledger_head}")
            if finished.result.ending == "failed":
                click.echo(f"error: {finished.result.reason}", err=True)
    sys.exit(130 if finished.result.ending == "interrupted" else 0 if finished.result.ended_well else 1)


def _combine_listeners(notify: Notify, children: TrackerProcesses, runs: Path) -> Notify:
    """Pass every event to `notify`, and start the trackers when the run directory exists for them to read."""

    def notify_all(event: TimelineEvent) -> None:
        notify(event)
        if run := get_started_run_id(event):
            children.start(RunPaths(runs / run))

    return notify_all


def _print_tracker_line(line: str) -> None:
    click.echo(f"tracking with {line}", err=True)


def write_run_report(paths: RunPaths) -> Path | None:
    """Write the report and return the path of its page; a report that fails does not fail the run."""
    began = time.monotonic()
    try:
        run_report.write_report(paths)
        page_signature.sign_page(paths, read_settings().cache)
    except Exception as error:
        logger.debug("Writing the report failed", exc_info=True)
        click.echo(f"warning: cannot write the report: {type(error).__name__}: {error}", err=True)
        click.echo("         The run's record is complete. Try again with `agent2rl report`.", err=True)
        return None
    logger.info("Wrote the report in %.1f s", time.monotonic() - began)
    return paths.report_page


def stop_on_signals(stop: threading.Event) -> None:
    """Stop the run cleanly on the first Ctrl-C, and abort it on the second."""

    def handle(_: int, __: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("stopping the agent and closing the record (press Ctrl-C again to abort)", err=True)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _format_view_command(runs: Path) -> str:
    """Return the command that shows the runs in a browser; with our path if agent2rl is not on $PATH."""
    executable = Path(sys.argv[0])
    not_on_path = executable.name == "agent2rl" and shutil.which("agent2rl") is None
    program = _shorten_path(executable.absolute()) if not_on_path else "agent2rl"
    return shlex.join([str(program), "view", str(_shorten_path(runs.absolute()))])


def _shorten_path(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
