"""agent2rl reproduce"""

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent2rl.bundles.unpacking import (
    find_reproductions_folder,
    is_bundle,
    select_without_report,
    verify_bundle,
)
from agent2rl.cli.options import (
    DurationParam,
    as_json,
    complete_names,
    complete_runs,
    require_own_run,
    resolve_run,
    runs_dir,
    unpack_bundle,
)
from agent2rl.cli.run_and_report import stop_on_signals, write_run_report
from agent2rl.cli.terminal_output import TerminalProgress, sanitize_lines
from agent2rl.core.errors import UserError
from agent2rl.core.reproduction import Reproduction
from agent2rl.record.crash_recovery import read_spec
from agent2rl.record.paths import RunPaths
from agent2rl.report.reproductions import build_reproduction_rows, format_step
from agent2rl.run.reproduction import reproduce_submission
from agent2rl.run.reproduction_plan import ReproductionPlan, ReproductionRequest, plan_reproduction
from agent2rl.run.settings import read_settings
from agent2rl.run.third_party_runs import NamedInputs, ThirdPartyRun, open_reproductions_folder
from agent2rl.system.unix import require_linux

DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


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
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the answer about a bundle is written.  [default: RUN.reproductions beside the bundle]",
)
@click.option("--task", help="For a bundle: the run's task, if it is not an installed one.")
@click.option(
    "--data-dir", type=DIRECTORY, help="For a bundle: the directory with the task's official files."
)
@click.option("--model", help="For a bundle: the run's base model, if it does not ship with agent2rl.")
@click.option("--judge", metavar="NAME", help="For a bundle: the judge, if the run had one.")
@click.option("--train-judge", metavar="NAME", help="For a bundle: the training judge, if the run had one.")
@click.option("--search", metavar="NAME", help="For a bundle: the search backend, if the run had one.")
@click.option(
    "--agent-python", metavar="PATH", type=DIRECTORY, help="For a bundle: the agent's Python environment."
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
    output: Path | None,
    dry_run: bool,
    runs_dir: Path | None,
    as_json: bool,
    **inputs: Any,
) -> None:
    """Train a submission of RUN (a run or a bundle) again from its recorded code, and compare the scores.

    The code runs as it was when the submission was accepted, without an LLM, in a new sandbox without a
    network, with the same task, data, base model, seed and time. What it trains is graded like any
    submission. The answer is added to the run's record, and reports, leaderboards and `verify` show it:

    \b
    reproduced       the intervals overlap, and the paired difference is not significant
    not reproduced   with both scores
    cannot           with the reason, such as a file that was not recorded

    A bundle may come from anybody, so code, files and addresses that it names are not used. The task must be
    an installed one, and you name whatever else the run used with the options that say `For a bundle`. The
    answer is written beside the bundle, where `verify` finds it.

    \b
    agent2rl reproduce latest --dry-run
    agent2rl reproduce latest
    agent2rl reproduce RUN.tar.zst
    agent2rl reproduce 20261116 --submission 2 --entry 'python code/train.py --seed 1'

    Exit code: 0 if it was reproduced (or with --dry-run), 1 if not, 2 for wrong input, 130 if it was
    interrupted.
    """
    require_linux("Reproductions")
    request = ReproductionRequest(submission, budget, entry, sandbox)
    if is_bundle(run):
        _reproduce_bundle(Path(run), request, NamedInputs(**inputs), output, dry_run, as_json)
    bundle_options = [name for name, value in {**inputs, "output": output}.items() if value is not None]
    if bundle_options:
        raise UserError(
            f"{run} is not a bundle, so its own record counts.",
            f"Leave out --{bundle_options[0].replace('_', '-')}.",
        )
    paths = resolve_run(run, runs_dir)
    require_own_run(paths, runs_dir, read_spec(paths).task)
    reproduction = _reproduce_run(paths, request, dry_run, as_json)
    if paths.report_page.exists():
        write_run_report(paths)
    sys.exit(0 if reproduction.answer == "reproduced" else 1)


def _reproduce_bundle(
    file: Path,
    request: ReproductionRequest,
    inputs: NamedInputs,
    output: Path | None,
    dry_run: bool,
    as_json: bool,
) -> NoReturn:
    bundle = unpack_bundle(str(file), select_without_report)
    verification = verify_bundle(bundle)
    if not verification.holds:
        raise UserError(
            f"The record in {file} does not hold: {verification.fault}.",
            "Only an unchanged record can be reproduced.",
        )
    folder = output or find_reproductions_folder(file)
    with open_reproductions_folder(folder, bundle.paths) as target:
        third_party_run = ThirdPartyRun(target, inputs, bundle.unchecked, (file.absolute(), target.root))
        reproduction = _reproduce_run(
            bundle.paths, replace(request, third_party_run=third_party_run), dry_run, as_json
        )
    sys.exit(0 if reproduction.answer == "reproduced" else 1)


def _reproduce_run(
    paths: RunPaths, request: ReproductionRequest, dry_run: bool, as_json: bool
) -> Reproduction:
    """Reproduce and print the answer; exit if there is none."""
    settings, stop = read_settings(), threading.Event()
    if dry_run:
        _print_plan(plan_reproduction(paths, request, settings), as_json)
        sys.exit()
    stop_on_signals(stop)
    target = request.third_party_run.target if request.third_party_run else paths
    with TerminalProgress(as_json, target.reproductions) as progress:
        reproduction = reproduce_submission(paths, request, settings, progress.handle_event, stop)
    if reproduction is None:
        click.echo("Interrupted: nothing was added to the record.", err=True)
        sys.exit(130)
    _print_answer(target, reproduction, as_json)
    return reproduction


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
