"""agent2rl resume"""

from dataclasses import replace
from pathlib import Path

import click

from agent2rl.cli.options import as_json, complete_runs, no_report, resolve_run, runs_dir, track, track_group
from agent2rl.cli.run_and_report import RunOutputOptions, run_and_report
from agent2rl.cli.terminal_output import print_run
from agent2rl.runner.run import resume_run
from agent2rl.runner.settings import read_settings
from agent2rl.store.reader import read_run


@click.command("resume")
@click.argument("run", shell_complete=complete_runs)
@track
@track_group
@no_report
@runs_dir
@as_json
def resume_command(
    run: str,
    track: tuple[str, ...],
    track_group: str | None,
    no_report: bool,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Go on with a run whose harness, machine or job died.

    RUN is a run directory, a run's id (or the start of it) below the runs directory, or `latest`.

    The ledger says how far the run came, and nothing in it is done a second time. Submissions that were taken
    in and not graded are graded first. An agent that was at work is started again in its workspace as it was,
    for the time that was left when the harness died; it is told how things stand, and a program finds the
    variable RESUMED=1. Its processes are gone: a training goes on only from a checkpoint. Tokens, dollars,
    submissions and environment steps go on counting.

    Model and data must be those that the run began with. Keys are read from your environment, as for `run`.
    A run that is finished stays as it is.

    \b
    agent2rl resume latest
    agent2rl resume 20261116-101500 --json

    Exit code: as for `run`; 0 where there was nothing to do, 2 where the run cannot go on as things are,
    which leaves it as it was.
    """
    paths, where = resolve_run(run, runs_dir), read_settings()
    view = read_run(paths) if paths.result.exists() else None
    if view and view.result is not None:
        click.echo(f"{paths.run_id} is finished: there is nothing to resume.", err=True)
        click.echo(view.result.model_dump_json()) if as_json else print_run(view)
        return
    here = replace(where, runs=paths.root.parent)
    telling = RunOutputOptions(as_json, no_report, track, track_group)
    run_and_report(here.runs, telling, lambda notify, stop: resume_run(paths, here, notify, stop))
