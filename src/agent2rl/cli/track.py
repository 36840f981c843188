"""agent2rl track"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from agent2rl.cli.options import resolve_run, runs_dir, track_group, validate_trackers
from agent2rl.core.tracker import Tracker
from agent2rl.store.paths import RunPaths
from agent2rl.tracking import mirror
from agent2rl.tracking.tracker_names import describe_failure


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
