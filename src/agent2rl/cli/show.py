"""agent2rl show"""

from pathlib import Path

import click

from agent2rl.cli.options import as_json, complete_runs, resolve_run, runs_dir
from agent2rl.cli.terminal_output import print_episode, print_examples, print_run
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import ExampleResult, Split
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_results, read_run
from agent2rl.report import run_report
from agent2rl.report.record import RunReport


@click.command("show")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--submission",
    type=click.IntRange(0),
    help="What this submission did, example by example; 0 is the untouched model.",
)
@click.option("--episode", "--example", help="One of its examples, by number or id: an episode turn by turn.")
@click.option("--split", type=click.Choice(["feedback", "heldout"]), default="feedback", show_default=True)
@runs_dir
@as_json
def show_command(
    run: str,
    submission: int | None,
    episode: str | None,
    split: Split,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Show a run: going, finished or crashed; or what one of its submissions did.

    RUN is a run directory, a run's id (or the start of it) below the runs directory, or `latest`.

    \b
    agent2rl show 20261116
    agent2rl show 20261116 --submission 3
    agent2rl show 20261116 --submission 3 --episode 17
    """
    paths = resolve_run(run, runs_dir)
    if submission is None:
        if episode is not None:
            raise UserError("--episode wants to know whose.", "Name the submission: --submission 1.")
        if as_json:
            click.echo(RunReport.from_report_data(run_report.gather_report_data(paths)).model_dump_json())
        else:
            print_run(read_run(paths))
        return
    results = _read_submission_results(paths, submission, split)
    chosen = list(enumerate(results, start=1))
    if episode is not None:
        chosen = [_find_example(results, episode)]
    if as_json:
        for _, result in chosen:
            click.echo(result.model_dump_json())
    elif episode is None:
        print_examples(results)
    else:
        print_episode(*chosen[0])


def _read_submission_results(paths: RunPaths, submission: int, split: Split) -> list[ExampleResult]:
    where = paths.submission_paths(submission) if submission else paths.baseline
    try:
        return read_results(where.results_file(split))
    except FileNotFoundError:
        raise UserError(
            f"Submission {submission} of {paths.run_id} has no {split} results.",
            "`agent2rl show` lists the submissions; one that copies an earlier one shares its results.",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{where.results_file(split)} cannot be read: {type(error).__name__}.") from error


def _find_example(results: list[ExampleResult], name: str) -> tuple[int, ExampleResult]:
    """By its number, as the list shows it, or by its id."""
    for number, result in enumerate(results, start=1):
        if name in (str(number), result.id):
            return number, result
    raise UserError(f"There is no example {name!r}.", f"They are numbered from 1 to {len(results)}.")
