"""agent2rl show"""

from pathlib import Path

import click

from agent2rl.cli.options import as_json, find, runs_dir
from agent2rl.cli.print import print_run
from agent2rl.report.page import Report
from agent2rl.store.reader import read_run


@click.command("show")
@click.argument("run")
@runs_dir
@as_json
def command(run: str, runs_dir: Path | None, as_json: bool) -> None:
    """Show a run: going, finished or crashed.

    RUN is a run directory, or a run's id (or the start of it) below the runs directory.
    """
    view = read_run(find(run, runs_dir))
    if as_json:
        click.echo(Report.of(view).model_dump_json())
    else:
        print_run(view)
