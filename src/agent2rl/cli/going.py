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

from agent2rl.cli.print import Progress, print_run
from agent2rl.core.events import Event
from agent2rl.report import export, page
from agent2rl.runner.run import Finished
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import read_run
from agent2rl.store.recorder import Notify
from agent2rl.tracking import mirror
from agent2rl.tracking.children import Children, started


@dataclass(frozen=True)
class Telling:
    """Who hears of a run, and what is left when it is over."""

    as_json: bool
    no_report: bool
    track: Sequence[str] = ()
    track_group: str | None = None


def go(runs: Path, telling: Telling, work: Callable[[Notify, threading.Event], Finished]) -> NoReturn:
    for name in telling.track:
        mirror.require(name)
    stop = threading.Event()
    _stop_on_signals(stop)
    as_json = telling.as_json
    if not as_json:
        click.echo(f"watch:  {_viewing(runs)}", err=True)
    with Children(telling.track, telling.track_group, _tracked) as children:
        with Progress(as_json, runs) as progress:
            finished = work(_both(progress.notify, children, runs), stop)
        export.keep(finished.paths)
        if as_json:
            click.echo(finished.result.model_dump_json())
        else:
            print_run(read_run(finished.paths))
        told = None if telling.no_report else _report(finished.paths)
        if not as_json:
            click.echo(f"report: {_short(told)}" if told else "report: agent2rl report latest")
            click.echo(f"view:   {_viewing(runs)}")
            click.echo(f"ledger: {finished.ledger_head}")
    sys.exit(130 if finished.result.ending == "interrupted" else 0 if finished.result.ended_well else 1)


def _both(notify: Notify, children: Children, runs: Path) -> Notify:
    """Progress hears of every event; trackers read the run directory, and need to know that it is there."""

    def told(event: Event) -> None:
        notify(event)
        if run := started(event):
            children.start(RunPaths(runs / run))

    return told


def _tracked(line: str) -> None:
    click.echo(f"tracking with {line}", err=True)


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


def _viewing(runs: Path) -> str:
    """What shows the runs in a browser, as this program was called."""
    called = Path(sys.argv[0])
    hidden = called.name == "agent2rl" and shutil.which("agent2rl") is None
    program = _short(called.absolute()) if hidden else "agent2rl"
    return shlex.join([str(program), "view", str(_short(runs.absolute()))])


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
