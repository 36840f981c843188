"""agent2rl leaderboard, and the digests of many runs that other commands gather as well"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from agent2rl import registry
from agent2rl.analysis.campaigns.leaderboard import Leaderboard, build_leaderboard
from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.cli.options import ProtocolParam, runs_dir
from agent2rl.cli.terminal_output import sanitize_one_line
from agent2rl.core.errors import UserError
from agent2rl.core.records import ScoringProtocol
from agent2rl.record.files import write_atomically
from agent2rl.record.paths import RunPaths
from agent2rl.report import campaign_tables, digests, latex_tables, leaderboard_table
from agent2rl.run.settings import read_settings

protocol = click.option(
    "--protocol",
    type=ProtocolParam(),
    default="default",
    show_default=True,
    help="Use only runs with this scoring protocol. Results of different protocols are never mixed.",
)

include_contaminated = click.option(
    "--include-contaminated",
    is_flag=True,
    help="Include runs with evaluation data in their workspace. They are marked.",
)


@click.command("leaderboard")
@click.argument("runs", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--task", multiple=True, help="Use only runs of this task. Can be repeated.")
@protocol
@include_contaminated
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "html", "csv", "json", "latex"]),
    default="table",
    show_default=True,
    help="The output format.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file instead of stdout.",
)
@runs_dir
def leaderboard_command(
    runs: Path | None,
    task: tuple[str, ...],
    protocol: ScoringProtocol,
    include_contaminated: bool,
    form: str,
    output: Path | None,
    runs_dir: Path | None,
) -> None:
    """Rank every combination of agent, driver, model and mode among the runs in the directory RUNS.

    The rank is by mean gain, averaged over tasks, and comes with its uncertainty. Runs that failed because of
    the harness, the machine or a provider do not count as 0: they are listed separately. Contaminated runs
    are left out and counted, unless you pass --include-contaminated.

    \b
    agent2rl leaderboard
    agent2rl leaderboard /shared/runs --task alfworld --format markdown
    agent2rl leaderboard --format html -o leaderboard.html
    """
    folder = (runs or runs_dir or read_settings().runs).absolute()
    gathered = gather_digests(require_runs_in(folder))
    for path in gathered.unreadable:
        click.echo(f"note: cannot read {sanitize_one_line(path)}", err=True)
    board = build_leaderboard(_select_tasks(gathered.digests, task), protocol, include_contaminated)
    if not board.rows and board.contaminated_left_out:
        raise UserError(
            f"Every run in {folder} with the protocol {protocol} is contaminated: evaluation data was found "
            "in its workspace.",
            "Include such runs with --include-contaminated.",
        )
    if not board.rows:
        raise UserError(
            f"No run in {folder} uses the protocol {protocol}.", "Choose another one with --protocol."
        )
    text = _render_text(board, form)
    if output or form in ("csv", "json"):
        for note in leaderboard_table.contamination_notes(board):
            click.echo(f"note: {note}", err=True)
    if output:
        write_atomically(output, text)
        click.echo(f"{len(board.rows)} {'row' if len(board.rows) == 1 else 'rows'} in {output}")
    elif form == "table":
        _print_table(board)
    else:
        click.echo(text, nl=False)


def _select_tasks(digests: Sequence[RunDigest], tasks: tuple[str, ...]) -> list[RunDigest]:
    task_names = sorted({name for each in digests for name in (each.task, each.task_setting)})
    if missing := [task for task in tasks if task not in task_names]:
        raise UserError(f"There is no run of {missing[0]!r}.", f"There are runs of: {', '.join(task_names)}.")
    return [each for each in digests if not tasks or {each.task, each.task_setting} & set(tasks)]


def _render_text(board: Leaderboard, form: str) -> str:
    if form == "csv":
        return campaign_tables.render_csv(campaign_tables.build_leaderboard_rows(board))
    if form == "json":
        return board.model_dump_json() + "\n"
    if form == "latex":
        return latex_tables.render_leaderboard(board)
    return (
        leaderboard_table.render_html(board) if form == "html" else leaderboard_table.render_markdown(board)
    )


def _print_table(board: Leaderboard) -> None:
    table = Table()
    for name in leaderboard_table.list_columns(board):
        table.add_column(escape(name), justify="left" if name == "entry" else "right")
    for row in leaderboard_table.build_rows(board):
        table.add_row(*(escape(sanitize_one_line(cell)) for cell in row))
    console = Console(highlight=False)
    console.print(table)
    for note in leaderboard_table.build_notes(board):
        console.print(escape(sanitize_one_line(note)), style="dim")


# Gather the digests of many runs and the traits of their tasks, for leaderboards and campaign reports.


MINIATURE = "-mini"


def require_runs_in(folder: Path) -> list[RunPaths]:
    """Return all runs in a runs directory; raise UserError if there are none."""
    runs = digests.runs_below(folder)
    if not runs:
        raise UserError(
            f"There are no runs below {folder}.", "Choose another runs directory with --runs-dir."
        )
    return runs


def gather_digests(runs: Sequence[RunPaths]) -> digests.GatheredDigests:
    """Gather digests with a progress bar on stderr, because a run without a cached digest takes a moment."""
    columns = (TextColumn("reading runs"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(runs))
        return digests.gather_digests(runs, lambda done: progress.update(bar, completed=done))


def select_task_traits(run_digests: Sequence[RunDigest]) -> list[TaskTraits]:
    """Return the traits of all miniature tasks if any was run, and of all full tasks if any was run."""
    sizes = {digest.task.endswith(MINIATURE) for digest in run_digests}
    return [traits for traits in list_task_traits() if traits.task.endswith(MINIATURE) in sizes]


@cache
def list_task_traits() -> list[TaskTraits]:
    """Return the traits of every registered task that needs no argument."""
    traits = []
    for entry in registry.list_entries("tasks"):
        with suppress(UserError):  # a task that needs an argument, such as a folder
            task = registry.find_task(entry.name)
            traits.append(
                TaskTraits(
                    task=task.id,
                    level=task.level,
                    world=task.world is not None,
                    judged=task.judged,
                    judge_offered="judge" in task.proxy_services,
                )
            )
    return traits
