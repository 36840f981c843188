"""The commands `export`, which writes rows or trajectories, and `track`, which mirrors runs in a tracker."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import click

from agent2rl.cli.options import resolve_run, runs_dir, track_group, validate_trackers
from agent2rl.core.errors import UserError
from agent2rl.core.tracker import Tracker
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.report import export
from agent2rl.run.settings import read_settings
from agent2rl.trackers import mirror
from agent2rl.trackers.mirror import describe_failure


@click.command("export")
@click.argument("form", type=click.Choice(["csv", "jsonl", "parquet", "atif"]))
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to: a file, or for atif a folder.  [default: csv and jsonl are printed]",
)
@runs_dir
def export_command(form: str, runs: tuple[str, ...], output: Path | None, runs_dir: Path | None) -> None:
    """Write runs as rows for other programs: all of the runs directory, or those that are named.

    \b
    csv      in the columns of the published harness, as results.csv in the runs directory is
    jsonl    all that is known, one object a run; metrics and route where a run has its report
    parquet  the same for data frames
    atif     the trajectories of driven agents, one file each

    \b
    agent2rl export csv > results.csv
    agent2rl export parquet -o runs.parquet
    agent2rl export atif 20261116 -o trajectories
    """
    chosen = [resolve_run(name, runs_dir) for name in runs] or _list_all_runs(runs_dir)
    if form in ("csv", "jsonl"):
        _write_rows(form, chosen, output)
        return
    if output is None:
        raise UserError(f"{form} is not for printing.", "Say where to: -o PATH.")
    if form == "atif":
        count = export.write_atif(chosen, output)
    else:
        count = export.write_parquet([read_run(paths) for paths in chosen], output)
    click.echo(f"{count} {'run' if count == 1 else 'runs'} in {output}")


def _list_all_runs(runs_dir: Path | None) -> Sequence[RunPaths]:
    folder = (runs_dir or read_settings().runs).absolute()
    found = export.runs_below(folder)
    if not found:
        raise UserError(f"There are no runs below {folder}.", "Name the runs directory with --runs-dir.")
    return found


def _write_rows(form: str, chosen: Sequence[RunPaths], output: Path | None) -> None:
    views = [read_run(paths) for paths in chosen]
    if form == "csv" and (many := sum(bool(view.contaminated) for view in views)):
        click.echo(
            f"note: {many} of these runs {'is' if many == 1 else 'are'} contaminated, which the columns of "
            f"the published harness do not tell: `agent2rl export jsonl` does.",
            err=True,
        )
    text = (
        export.render_csv(views)
        if form == "csv"
        else "".join(f"{row}\n" for row in export.render_jsonl(views))
    )
    if output:
        output.write_text(text, encoding="utf-8")
        click.echo(f"{len(views)} {'run' if len(views) == 1 else 'runs'} in {output}")
    else:
        click.echo(text, nl=False)


# agent2rl track


@click.command("track")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--to",
    metavar="NAME",
    multiple=True,
    required=True,
    callback=validate_trackers,
    help="wandb, mlflow, trackio or jsonl:FOLDER. May be given several times.",
)
@track_group
@runs_dir
def track_command(
    runs: tuple[str, ...], to: tuple[str, ...], track_group: str | None, runs_dir: Path | None
) -> None:
    """Mirror runs in a tracker: what it does not have yet.

    The run directory stays the truth. Sent are the specification, each submission with its score and what was
    spent by then, the training curves that the report found, the final score, and as files the report, the
    result and the ledger; never weights or the workspace. To send a run again changes nothing.

    \b
    agent2rl track latest --to mlflow
    agent2rl track runs/2026* --to trackio --track-group smoke
    WANDB_MODE=offline agent2rl track latest --to wandb

    Exit code: 0 where all was sent, 1 where a tracker failed, 2 for a wrong command line.
    """
    found = [resolve_run(name, runs_dir) for name in runs]
    chosen = {name: mirror.require_tracker(name) for name in to}
    sent = [
        _send_run(paths, name, tracker, track_group) for paths in found for name, tracker in chosen.items()
    ]
    sys.exit(0 if all(sent) else 1)


def _send_run(paths: RunPaths, name: str, tracker: Tracker, group: str | None) -> bool:
    """One that fails keeps no other from being sent."""
    try:
        with redirect_stdout(sys.stderr):  # what a tracker prints is not what was asked for
            where = mirror.mirror_run(paths, tracker, group)
        click.echo(f"{paths.run_id}: {name}: {where}")
    except Exception as error:
        click.echo(f"error: {paths.run_id} was not sent to {name}: {describe_failure(error)}", err=True)
        click.echo("       The run itself is whole. Mend what is said here, and send it again.", err=True)
        return False
    return True
