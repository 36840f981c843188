"""The commands `export` and `import`, for other programs, and `track`, which mirrors runs in a tracker."""

import logging
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, get_args

import click

from agent2rl import registry
from agent2rl.cli.options import (
    DurationParam,
    ExpertParam,
    complete_names,
    open_run,
    resolve_run,
    runs_dir,
    track_group,
    validate_trackers,
)
from agent2rl.cli.run import run_command
from agent2rl.core.errors import UserError
from agent2rl.core.records import Mode
from agent2rl.core.tracker import Tracker
from agent2rl.interop.harbor_export import HarborOptions, export_harbor_task
from agent2rl.interop.harbor_task import read_grading
from agent2rl.interop.verifiers_export import export_verifiers_package
from agent2rl.record.files import write_atomically
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.report import export
from agent2rl.run.assets import choose_default_engine
from agent2rl.run.settings import read_settings
from agent2rl.trackers import mirror
from agent2rl.trackers.mirror import describe_failure

logger = logging.getLogger(__name__)


DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)
TO_STDOUT = "The file to write.  [default: print to stdout]"
RUN_EXPORTS = (
    ("csv", "Export one row per run, with the columns of the published harness.", TO_STDOUT),
    ("jsonl", "Export everything known of each run; metrics and route only if it has a report.", TO_STDOUT),
    ("parquet", "Export the same data as jsonl, for data frames.", "The file to write."),
    ("atif", "Export the trajectories of LLM-driven agents, one file per run.", "The folder to write to."),
    ("inspect", "Export transcripts and gradings as logs for `inspect view`.", "The folder to write to."),
)
"""The forms of runs: name, help, help of -o."""
FOLDER_FORMS = ("atif", "inspect")


@click.group("export")
def export_command() -> None:
    """Export runs, or a task, for other programs.

    Runs are named by their ids, directories or bundles. Without names, all runs in the runs directory are
    exported.

    \b
    agent2rl export csv > results.csv
    agent2rl export parquet -o runs.parquet
    agent2rl export inspect latest -o logs
    agent2rl export harbor --task gsm8k-mini -o gsm8k-mini
    """


def _export_runs(form: str, runs: tuple[str, ...], output: Path | None, runs_dir: Path | None) -> None:
    chosen = [open_run(name, runs_dir) for name in runs] or _list_all_runs(runs_dir)
    if output and form not in FOLDER_FORMS and (output.is_dir() or not output.parent.is_dir()):
        reason = "it is a folder" if output.is_dir() else f"there is no folder {output.parent}"
        raise UserError(f"Cannot write {output}: {reason}.", "Choose another file: -o FILE.")
    if form in ("csv", "jsonl"):
        _write_rows(form, chosen, output)
        return
    if output is None:
        raise UserError(f"{form} cannot be printed.", "Choose where to write it: -o PATH.")
    if form in FOLDER_FORMS and output.exists() and not output.is_dir():
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


@export_command.command("harbor")
@click.option(
    "--task",
    required=True,
    shell_complete=complete_names("tasks"),
    help="The task (see: agent2rl list tasks).",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The new folder.")
@click.option(
    "--model",
    shell_complete=complete_names("models"),
    default="abacus",
    show_default=True,
    help="The base model: shipped, of the hub, or a directory.",
)
@click.option("--engine", help="The engine that grades.  [default: the model's own]")
@click.option(
    "--budget",
    type=DurationParam(),
    default="10m",
    show_default=True,
    help="The agent's time: 90s, 10m, 12h.",
)
@click.option(
    "--grading-time",
    type=DurationParam(),
    default="1h",
    show_default=True,
    help="Time limit for one grading.",
)
@click.option(
    "--mode", type=click.Choice(get_args(Mode)), default="free", show_default=True, help="As in `run`."
)
@click.option("--expert", type=ExpertParam(), help="As in `run`.  [default: the task's]")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="The random seed."
)
@click.option("--gpus", type=click.IntRange(0), default=0, show_default=True, help="GPUs for each container.")
@click.option("--data-dir", type=DIRECTORY, help="The directory with the task's official files.")
@click.option(
    "--tasks-dir", type=DIRECTORY, multiple=True, help="Also look for task folders here. Can be repeated."
)
def export_harbor(
    output: Path, task: str, data_dir: Path | None, tasks_dir: tuple[Path, ...], **options: Any
) -> None:
    """Export a task as a Harbor task, with a verifier that grades as a run does.

    The verifier has a container of its own, with the evaluation data and the grader. The agent's container
    has the training data, and both mount the base model read-only from one volume.

    \b
    agent2rl export harbor --task gsm8k-mini -o gsm8k-mini
    agent2rl export harbor --task gsm8k --data-dir DIR --model Qwen/Qwen2.5-7B-Instruct --budget 12h \\
        --gpus 1 -o gsm8k-qwen
    """
    settings = read_settings()
    model = options["model"]
    chosen = HarborOptions(
        task=registry.resolve_task_name(task, (*tasks_dir, *settings.tasks), data_dir),
        model=model,
        engine=options["engine"] or choose_default_engine(model, ()),
        wall_seconds=options["budget"],
        grading_seconds=options["grading_time"],
        mode=options["mode"],
        expert=options["expert"],
        seed=options["seed"],
        gpus=options["gpus"],
        data_dir=data_dir,
    )
    exported = export_harbor_task(chosen, output, settings, lambda text: click.echo(text, err=True))
    click.echo(f"task: {output}")
    click.echo(f"volume: {exported.volume}, to be filled with {exported.model_directory}: see README.md")


@export_command.command("verifiers")
@click.option(
    "--task",
    required=True,
    shell_complete=complete_names("tasks"),
    help="The task (see: agent2rl list tasks).",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The new folder.")
@click.option("--data-dir", type=DIRECTORY, help="The directory with the task's official files.")
def export_verifiers(task: str, output: Path, data_dir: Path | None) -> None:
    """Export a task's training games as an environment package for verifiers.

    The package has the training games and the grader's prompts, and no evaluation data.

    \b
    agent2rl export verifiers --task alfworld-mini -o alfworld-mini
    pip install ./alfworld-mini && vf-eval agent2rl-alfworld-mini
    """
    settings = read_settings()
    resolved = registry.resolve_task_name(task, settings.tasks, data_dir)
    name = export_verifiers_package(
        resolved, data_dir, output, settings, lambda text: click.echo(text, err=True)
    )
    click.echo(f"environment {name}: {output}")


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
        write_atomically(output, text)
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


# The command `import`, which runs a task of another framework here.


@click.group("import")
def import_command() -> None:
    """Run a task of another framework here.

    \b
    agent2rl import harbor gsm8k-mini --agent claude-code --driver claude-opus-4-6
    """


@import_command.command(
    "harbor", context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION OF RUN]...")
def import_harbor(folder: Path, run_options: tuple[str, ...]) -> None:
    """Run an agent on a Harbor task in agent2rl's own sandbox, without containers.

    FOLDER is a task that `agent2rl export harbor` wrote. Task, base model, engine, mode, expert help, seed
    and budget are those of the task; an option of `run` after FOLDER takes precedence. Here the agent also
    has the grading API, so it gets feedback, which it does not in Harbor. Other Harbor tasks are refused.

    \b
    agent2rl import harbor gsm8k-mini
    agent2rl import harbor gsm8k-mini --agent script:train.py --budget 5m
    """
    run_command.main(
        [*_make_run_arguments(folder.resolve()), *run_options], "agent2rl run", standalone_mode=False
    )


def _make_run_arguments(folder: Path) -> list[str]:
    grading = read_grading(folder)
    task = f"{grading.task}:{folder / 'tests' / 'task'}" if grading.is_folder else grading.task
    arguments = [
        *("--task", task, "--model", grading.model, "--engine", grading.engine),
        *("--mode", grading.mode, "--seed", str(grading.seed)),
        *("--budget", f"{grading.wall_seconds:g}s", "--grading-time", f"{grading.grading_seconds:g}s"),
    ]
    if registry.find_task(task).withhold is not None:
        arguments += ["--expert", str(grading.expert)]
    if grading.has_data:
        arguments += ["--data-dir", str(folder / "tests" / "data")]
    return arguments
