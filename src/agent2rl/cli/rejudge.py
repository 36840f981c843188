"""agent2rl rejudge"""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agent2rl import registry
from agent2rl.bundles.unpacking import is_bundle
from agent2rl.cli.options import (
    as_json,
    complete_runs,
    is_own_run,
    judge,
    open_run,
    runs_dir,
    sandbox,
    search,
)
from agent2rl.cli.terminal_output import sanitize_one_line
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalScore, HeldoutComparison
from agent2rl.record.reader import read_run
from agent2rl.registry import TASK_FOLDER_KINDS
from agent2rl.report.formatting import format_interval
from agent2rl.run.rejudging import RejudgedScore, Rejudgement, RejudgeOptions, Rule, rejudge_run
from agent2rl.run.settings import read_settings


@click.command("rejudge")
@click.argument("run", shell_complete=complete_runs)
@judge
@click.option(
    "--rule",
    type=click.Choice(["task", "paper"]),
    help="Grade by the task's own rule, or by its published profile.  [default: as the run did]",
)
@click.option(
    "--submission",
    "submissions",
    type=click.IntRange(1),
    multiple=True,
    help="The submission to grade again. Can be repeated.  [default: the best]",
)
@search
@click.option("--task", help="The run's task, if it has another name or folder here.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The directory with the task's official files.",
)
@sandbox
@runs_dir
@as_json
def rejudge_command(
    run: str,
    judge: str | None,
    rule: Rule | None,
    submissions: tuple[int, ...],
    search: str | None,
    task: str | None,
    data_dir: Path | None,
    sandbox: str,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Grade the kept outputs of RUN (a run or a bundle) again, and show old and new scores.

    No model is run: the outputs in the record are graded by another judge, or by another rule of the task.
    The base model and the best submission are graded on each split that has results. Differences are paired:
    new minus old, on the same examples. The run itself does not change.

    Outputs that were not kept are named: those of tasks whose evaluator queries the model itself, and those
    of examples without a result.

    \b
    agent2rl rejudge latest --judge gpt-4o
    agent2rl rejudge RUN.tar.zst --judge model:smollm2-135m
    agent2rl rejudge RUN --rule paper --data-dir DIR
    """
    if judge is None and rule is None:
        raise UserError("Choose a judge or a rule.", "Pass --judge NAME or --rule NAME.")
    view = read_run(open_run(run, runs_dir))
    is_own = not is_bundle(run) and is_own_run(view.paths, runs_dir)
    if not is_own and task is None and view.spec.task not in registry.list_names("tasks"):
        # The name could make us import any module, or run a folder of whoever made the run.
        raise UserError(
            f"The run names the task {view.spec.task!r}, which is not an installed task, and it is not "
            "in your runs directory.",
            f"Name the task here: --task {next(iter(TASK_FOLDER_KINDS))}:PATH or package.module:NAME.",
        )
    if data_dir is None and view.spec.data_dir and is_own:
        data_dir = Path(view.spec.data_dir)
    options = RejudgeOptions(judge, rule, search, submissions, task, data_dir, sandbox)
    rejudgement = rejudge_run(view, options, read_settings(), lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(rejudgement.model_dump_json())
    else:
        _print_rejudgement(rejudgement)


def _print_rejudgement(rejudgement: Rejudgement) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"old: {sanitize_one_line(rejudgement.old_rule)}", markup=False)
    console.print(f"new: {rejudgement.new_rule}", markup=False)
    table = Table()
    for name in ("", "split", "outputs", "old", "new", "difference"):
        table.add_column(name, no_wrap=True)
    for score in rejudgement.scores:
        table.add_row(*_format_score_row(score))
    for gain in rejudgement.gains:
        what = f"gain of submission {gain.submission}"
        table.add_row(what, gain.split, "", _format_difference(gain.old), _format_difference(gain.new), "")
    console.print(table)
    for text in rejudgement.notes:
        console.print(f"note: {text}", markup=False)
    for text in rejudgement.not_graded:
        console.print(f"not graded: {text}", markup=False)
    for score in rejudgement.scores:
        if missing := score.old.missing + score.new.missing:
            what = "the base model" if score.submission == 0 else f"submission {score.submission}"
            console.print(f"{missing} outputs of {what}, {score.split}, lack an old or a new score")


def _format_score_row(score: RejudgedScore) -> tuple[str, ...]:
    what = f"submission {score.submission}" if score.submission else "base model"
    return (
        what,
        score.split,
        f"{score.new.n:,}",
        _format_score(score.old),
        _format_score(score.new),
        _format_difference(score.difference),
    )


def _format_score(score: EvalScore) -> str:
    return f"{score.value:.2f} {format_interval(score.ci)}"


def _format_difference(comparison: HeldoutComparison) -> str:
    return f"{comparison.improvement:+.2f} {format_interval(comparison.ci)}"
