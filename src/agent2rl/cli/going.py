"""What `run` and `resume` share: a run goes, is watched, can be stopped, and is shown at its end."""

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from agent2rl.cli.print import Progress, print_run
from agent2rl.report import export, page
from agent2rl.runner.run import Finished
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import read_run
from agent2rl.store.recorder import Notify


def go(
    runs: Path, as_json: bool, no_report: bool, work: Callable[[Notify, threading.Event], Finished]
) -> NoReturn:
    stop = threading.Event()
    _stop_on_signals(stop)
    with Progress(as_json, runs) as progress:
        finished = work(progress.notify, stop)
    export.keep(finished.paths)
    if as_json:
        click.echo(finished.result.model_dump_json())
    else:
        print_run(read_run(finished.paths))
    told = None if no_report else _report(finished.paths)
    if not as_json:
        click.echo(f"report: {_short(told)}" if told else "report: agent2rl report latest")
        click.echo(f"ledger: {finished.ledger_head}")
    sys.exit(130 if finished.result.ending == "interrupted" else 0 if finished.result.ended_well else 1)


def _report(paths: RunPaths) -> Path | None:
    """Where it is; a report that cannot be made costs the run nothing."""
    try:
        page.write(paths)
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


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
