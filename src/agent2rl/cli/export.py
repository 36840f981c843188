"""The commands `export`, which writes rows or trajectories, and `track`, which mirrors runs in a tracker."""

import logging
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import click

from agent2rl.cli.options import resolve_run, runs_dir, track_group, validate_trackers
from agent2rl.cli.run_argument import open_run
from agent2rl.core.errors import UserError
from agent2rl.core.tracker import Tracker
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.report import export
from agent2rl.run.settings import read_settings
from agent2rl.trackers import mirror
from agent2rl.trackers.mirror import describe_failure

logger = logging.getLogger(__name__)


@click.command("export")
@click.argument("form", type=click.Choice(["csv", "jsonl", "parquet", "atif"]))
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file to write, or the folder for atif.  [default: print csv and jsonl to stdout]",
)
@runs_dir
def export_command(form: str, runs: tuple[str, ...], output: Path | None, runs_dir: Path | None) -> None:
    """Export runs for other programs: the given runs or bundles, or all runs in the runs directory.

    \b
    csv      one row per run, with the columns of the published harness (like results.csv in a runs directory)
    jsonl    one object per run with everything known; metrics and route only if the run has a report
    parquet  the same data as jsonl, for data frames
    atif     the trajectories of LLM-driven agents, one file per run

    \b
    agent2rl export csv > results.csv
    agent2rl export parquet -o runs.parquet
    agent2rl export atif 20261116 -o trajectories
    """
    chosen = [open_run(name, runs_dir) for name in runs] or _list_all_runs(runs_dir)
    if form in ("csv", "jsonl"):
        _write_rows(form, chosen, output)
        return
    if output is None:
        raise UserError(f"{form} cannot be printed.", "Choose where to write it: -o PATH.")
    if form == "atif":
        count = export.write_atif(chosen, output)
    else:
        count = export.write_parquet([read_run(paths) for paths in chosen], output)
    click.echo(f"{count} {'run' if count == 1 else 'runs'} in {output}")


def _list_all_runs(runs_dir: Path | None) -> Sequence[RunPaths]:
    folder = (runs_dir or read_settings().runs).absolute()
    runs = export.runs_below(folder)
    if not runs:
        raise UserError(f"There are no runs below {folder}.", "Choose the runs directory with --runs-dir.")
    return runs


def _write_rows(form: str, chosen: Sequence[RunPaths], output: Path | None) -> None:
    views = [read_run(paths) for paths in chosen]
    if form == "csv" and (contaminated := sum(bool(view.contaminated) for view in views)):
        click.echo(
            f"note: {contaminated} of these runs {'is' if contaminated == 1 else 'are'} contaminated. The "
            "columns of the published harness do not show this; `agent2rl export jsonl` does.",
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


# The command `track`


@click.command("track")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--to",
    metavar="NAME",
    multiple=True,
    required=True,
    callback=validate_trackers,
    help="The tracker: wandb, mlflow, trackio or jsonl:FOLDER. Can be repeated.",
)
@track_group
@runs_dir
def track_command(
    runs: tuple[str, ...], to: tuple[str, ...], track_group: str | None, runs_dir: Path | None
) -> None:
    """Mirror runs in a tracker.

    This sends the specification, each submission with its score and the budget spent so far, the training
    curves found by the report, the final score, and the report, result and ledger as files. It never sends
    weights or the workspace. The run directory remains the source of truth. Only what the tracker does not
    have yet is sent, so repeating the command changes nothing.

    \b
    agent2rl track latest --to mlflow
    agent2rl track runs/2026* --to trackio --track-group smoke
    WANDB_MODE=offline agent2rl track latest --to wandb

    Exit code: 0 if everything was sent, 1 if a tracker failed, 2 for a wrong command line.
    """
    run_paths = [resolve_run(name, runs_dir) for name in runs]
    trackers = {name: mirror.require_tracker(name) for name in to}
    sent = [
        _send_run(paths, name, tracker, track_group)
        for paths in run_paths
        for name, tracker in trackers.items()
    ]
    sys.exit(0 if all(sent) else 1)


def _send_run(paths: RunPaths, name: str, tracker: Tracker, group: str | None) -> bool:
    """Send one run to one tracker and return whether it worked. A failure does not stop the other runs."""
    try:
        with redirect_stdout(sys.stderr):  # keep the tracker's own output out of ours
            location = mirror.mirror_run(paths, tracker, group)
        click.echo(f"{paths.run_id}: {name}: {location}")
    except Exception as error:
        logger.debug("Sending %s to %s failed", paths.run_id, name, exc_info=True)
        click.echo(f"error: {paths.run_id} was not sent to {name}: {describe_failure(error)}", err=True)
        click.echo("       The run itself is complete. Fix the problem and send it again.", err=True)
        return False
    return True
