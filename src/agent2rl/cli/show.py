"""agent2rl show"""

from pathlib import Path

import click

from agent2rl.cli.options import as_json, complete_runs, open_run, runs_dir
from agent2rl.cli.terminal_output import print_episode, print_examples, print_run
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import ExampleResult, Split
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_results, read_rollouts, read_run
from agent2rl.report import run_report
from agent2rl.report.report_data import RunReport


@click.command("show")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--submission",
    type=click.IntRange(0),
    help="Show the results of this submission, example by example. 0 is the base model.",
)
@click.option("--episode", "--example", help="Show one example in full, by number or id.")
@click.option(
    "--split",
    type=click.Choice(["feedback", "heldout"]),
    default="feedback",
    show_default=True,
    help="The split of these results.",
)
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
    """Show a run (running, finished or crashed), or the results of one of its submissions.

    RUN is a run directory, the id of a run in the runs directory (or the start of an id), `latest`, or
    a bundle.

    \b
    agent2rl show 20261116
    agent2rl show 20261116 --submission 3
    agent2rl show 20261116 --submission 3 --episode 17
    """
    paths = open_run(run, runs_dir)
    if submission is None:
        if episode is not None:
            raise UserError("--episode needs a submission.", "Add the submission: --submission 1.")
        if as_json:
            click.echo(RunReport.from_report_data(run_report.gather_report_data(paths)).model_dump_json())
        else:
            view = read_run(paths)
            print_run(view, read_rollouts(view))
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
    directory = paths.submission_paths(submission) if submission else paths.baseline
    try:
        return read_results(directory.results_file(split))
    except FileNotFoundError:
        raise UserError(
            f"Submission {submission} of {paths.run_id} has no {split} results.",
            "`agent2rl show` lists the submissions. A copy of an earlier submission shares its results.",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {directory.results_file(split)}: {type(error).__name__}.") from error


def _find_example(results: list[ExampleResult], name: str) -> tuple[int, ExampleResult]:
    """Find an example by its number, as shown in the list, or by its id."""
    for number, result in enumerate(results, start=1):
        if name in (str(number), result.id):
            return number, result
    raise UserError(f"There is no example {name!r}.", f"Examples are numbered from 1 to {len(results)}.")
