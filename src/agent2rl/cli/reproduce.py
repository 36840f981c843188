"""agent2rl reproduce"""

import sys
import threading
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent2rl.cli.options import (
    DurationParam,
    as_json,
    complete_names,
    complete_runs,
    require_own_run,
    resolve_run,
    runs_dir,
)
from agent2rl.cli.run_and_report import stop_on_signals, write_run_report
from agent2rl.cli.terminal_output import TerminalProgress, sanitize_lines
from agent2rl.core.reproduction import Reproduction
from agent2rl.core.unix import require_linux
from agent2rl.record.crash_recovery import read_spec
from agent2rl.record.paths import RunPaths
from agent2rl.report.reproductions import build_reproduction_rows, format_step
from agent2rl.run.reproduction import reproduce_submission
from agent2rl.run.reproduction_plan import ReproductionPlan, ReproductionRequest, plan_reproduction
from agent2rl.run.settings import read_settings


@click.command("reproduce")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--submission", type=click.IntRange(1), help="The submission to reproduce.  [default: the run's best]"
)
@click.option(
    "--entry",
    metavar="COMMAND",
    multiple=True,
    help="A command that trains the submission, run in the workspace. Can be repeated, in order.  [default: "
    "the programs that the record shows]",
)
@click.option(
    "--budget", type=DurationParam(), help="The time that the steps may take: 90s, 10m.  [default: the run's]"
)
@click.option(
    "--sandbox",
    metavar="NAME",
    shell_complete=complete_names("sandboxes"),
    help="What isolates the recorded code.  [default: the run's]",
)
@click.option("--dry-run", is_flag=True, help="Show what would run, and run nothing.")
@runs_dir
@as_json
def reproduce_command(
    run: str,
    submission: int | None,
    entry: tuple[str, ...],
    budget: float | None,
    sandbox: str | None,
    dry_run: bool,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Train a submission of RUN again from its recorded code, and compare the scores.

    The code runs as it was when the submission was accepted, without an LLM, in a new sandbox without a
    network, with the same task, data, base model, seed and time. What it trains is graded like any
    submission. The answer is added to the run's record, and reports, leaderboards and `verify` show it:

    \b
    reproduced       the intervals overlap, and the paired difference is not significant
    not reproduced   with both scores
    cannot           with the reason, such as a file that was not recorded

    \b
    agent2rl reproduce latest --dry-run
    agent2rl reproduce latest
    agent2rl reproduce 20261116 --submission 2 --entry 'python code/train.py --seed 1'

    Exit code: 0 if it was reproduced (or with --dry-run), 1 if not, 2 for wrong input, 130 if it was
    interrupted.
    """
    require_linux("Reproductions")
    paths, settings = resolve_run(run, runs_dir), read_settings()
    require_own_run(paths, runs_dir, read_spec(paths).task)
    request = ReproductionRequest(submission, budget, entry, sandbox)
    if dry_run:
        _print_plan(plan_reproduction(paths, request), as_json)
        return
    stop = threading.Event()
    stop_on_signals(stop)
    with TerminalProgress(as_json, paths.reproductions) as progress:
        reproduction = reproduce_submission(paths, request, settings, progress.handle_event, stop)
    if reproduction is None:
        click.echo("Interrupted: nothing was added to the record.", err=True)
        sys.exit(130)
    _print_answer(paths, reproduction, as_json)
    if paths.report_page.exists():
        write_run_report(paths)
    sys.exit(0 if reproduction.answer == "reproduced" else 1)


def _print_answer(paths: RunPaths, reproduction: Reproduction, as_json: bool) -> None:
    if as_json:
        click.echo(reproduction.model_dump_json())
        return
    table = Table.grid(padding=(0, 2))
    for name, text in build_reproduction_rows(reproduction):
        table.add_row(escape(name), escape(sanitize_lines(text)))
    Console(highlight=False).print(table)
    if reproduction.run:
        click.echo(f"record: {paths.reproduction_paths(reproduction.run).root}")


def _print_plan(plan: ReproductionPlan, as_json: bool) -> None:
    answer = plan.answer("cannot", plan.found.problem or "nothing ran: this is a plan")
    if as_json:
        click.echo(answer.model_dump_json())
        return
    click.echo(
        f"submission {plan.submission.id}, {plan.submitted}, from revision {plan.revision} of the code"
    )
    for number, step in enumerate(plan.found.steps, start=1):
        took = f"  ({step.seconds:.0f} s)" if step.seconds else ""
        click.echo(sanitize_lines(f"step {number}: {format_step(step)}{took}"))
    for text in (*answer.left_out, *answer.withheld):
        click.echo(sanitize_lines(f"left out: {text}"))
    if plan.found.problem:
        click.echo(sanitize_lines(f"cannot: {plan.found.problem}"))
