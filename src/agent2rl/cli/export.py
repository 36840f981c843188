"""The commands `export`, for other programs, and `track`, which mirrors runs in a tracker."""

import logging
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

logger = logging.getLogger(__name__)


TO_STDOUT = "The file to write.  [default: print to stdout]"
RUN_EXPORTS = (
    ("csv", "Export one row per run, with the columns of the published harness.", TO_STDOUT),
    ("jsonl", "Export everything known of each run; metrics and route only if it has a report.", TO_STDOUT),
    ("parquet", "Export the same data as jsonl, for data frames.", "The file to write."),
    ("atif", "Export the trajectories of LLM-driven agents, one file per run.", "The folder to write to."),
    ("inspect", "Export transcripts and gradings as logs for `inspect view`.", "The folder to write to."),
)
"""The forms of runs: name, help, help of -o."""


@click.group("export")
def export_command() -> None:
    """Export runs, or a task, for other programs.

    Runs are named by their ids or directories; without names, all runs in the runs directory are exported.

    \b
    agent2rl export csv > results.csv
    agent2rl export parquet -o runs.parquet
    agent2rl export inspect latest -o logs
    agent2rl export harbor --task gsm8k-mini -o gsm8k-mini
    """


def _export_runs(form: str, runs: tuple[str, ...], output: Path | None, runs_dir: Path | None) -> None:
    chosen = [resolve_run(name, runs_dir) for name in runs] or _list_all_runs(runs_dir)
    if form in ("csv", "jsonl"):
        _write_rows(form, chosen, output)
        return
    if output is None:
        raise UserError(f"{form} cannot be printed.", "Choose where to write it: -o PATH.")
    if form in ("atif", "inspect") and output.exists() and not output.is_dir():
        raise UserError(f"{output} is not a folder.", "Choose a folder: -o FOLDER.")
    if form == "inspect":
        logs = export.write_inspect_logs(chosen, output)
        click.echo(f"{logs} {'log' if logs == 1 else 'logs'} in {output}")
        return
    if form == "atif":
        count = export.write_atif(chosen, output)
    else:
        count = export.write_parquet([read_run(paths) for paths in chosen], output)
    click.echo(f"{count} {'run' if count == 1 else 'runs'} in {output}")


def _add_run_export(form: str, help_text: str, output_help: str) -> None:
    """Add the command that exports runs in a form: the given runs, or all runs in the runs directory."""

    @export_command.command(form, help=help_text)
    @click.argument("runs", nargs=-1, metavar="[RUN]...")
    @click.option("-o", "--output", type=click.Path(path_type=Path), help=output_help)
    @runs_dir
    def export_runs(runs: tuple[str, ...], output: Path | None, runs_dir: Path | None) -> None:
        _export_runs(form, runs, output, runs_dir)


for _form, _help_text, _output_help in RUN_EXPORTS:
    _add_run_export(_form, _help_text, _output_help)


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
