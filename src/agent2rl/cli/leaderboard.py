"""agent2rl leaderboard"""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent2rl.analysis.campaigns.leaderboard import Leaderboard, build_leaderboard
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.cli.options import runs_dir
from agent2rl.cli.run_digests import gather_digests, require_runs_in
from agent2rl.core.errors import UserError
from agent2rl.core.records import ScoringProtocol
from agent2rl.record.files import write_atomically
from agent2rl.report import campaign_tables
from agent2rl.run.settings import read_settings

protocol = click.option(
    "--protocol",
    type=click.Choice(get_args(ScoringProtocol)),
    default="heldout",
    show_default=True,
    help="Whose runs: gains under two protocols are never put together.",
)

include_contaminated = click.option(
    "--include-contaminated",
    is_flag=True,
    help="Count runs in whose workspace evaluation data was found, too; they carry a mark.",
)


@click.command("leaderboard")
@click.argument("runs", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--task", multiple=True, help="Only of these tasks. May be given several times.")
@protocol
@include_contaminated
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "html", "csv", "json"]),
    default="table",
    show_default=True,
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file."
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
    """Rank what was run in the directory RUNS: every combination of agent, driver, model and mode.

    By the mean over tasks of the mean gain, with how sure each rank is. Runs that the harness, the machine or
    a provider broke say nothing of their agent: they are counted apart, and never as 0. Contaminated runs
    are left out and counted, unless --include-contaminated is given.

    \b
    agent2rl leaderboard
    agent2rl leaderboard /shared/runs --task alfworld --format markdown
    agent2rl leaderboard --format html -o leaderboard.html
    """
    folder = (runs or runs_dir or read_settings().runs).absolute()
    found = gather_digests(require_runs_in(folder))
    for each in found.unreadable:
        click.echo(f"note: cannot be read: {each}", err=True)
    made = build_leaderboard(_select_tasks(found.digests, task), protocol, include_contaminated)
    if not made.rows and made.contaminated_left_out:
        raise UserError(
            f"Every run of {folder} under the protocol {protocol} is contaminated: evaluation data was found "
            "in its workspace.",
            "Include such runs with --include-contaminated.",
        )
    if not made.rows:
        raise UserError(
            f"No run of {folder} is under the protocol {protocol}.", "Name the other one with --protocol."
        )
    text = _render_text(made, form)
    if output or form in ("csv", "json"):
        for note in campaign_tables.contamination_notes(made):
            click.echo(f"note: {note}", err=True)
    if output:
        write_atomically(output, text)
        click.echo(f"{len(made.rows)} {'row' if len(made.rows) == 1 else 'rows'} in {output}")
    elif form == "table":
        _print_table(made)
    else:
        click.echo(text, nl=False)


def _select_tasks(digests: Sequence[RunDigest], tasks: tuple[str, ...]) -> list[RunDigest]:
    known = sorted({each.task for each in digests})
    if missing := [task for task in tasks if task not in known]:
        raise UserError(f"There is no run of {missing[0]!r}.", f"There are runs of: {', '.join(known)}.")
    return [each for each in digests if not tasks or each.task in tasks]


def _render_text(made: Leaderboard, form: str) -> str:
    if form == "csv":
        return campaign_tables.render_csv(campaign_tables.build_leaderboard_rows(made))
    if form == "json":
        return made.model_dump_json() + "\n"
    return campaign_tables.render_html(made) if form == "html" else campaign_tables.render_markdown(made)


def _print_table(made: Leaderboard) -> None:
    table = Table()
    for name in campaign_tables.list_columns(made):
        table.add_column(escape(name), justify="left" if name == "entry" else "right")
    for row in campaign_tables.build_rows(made):
        table.add_row(*map(escape, row))
    console = Console(highlight=False)
    console.print(table)
    for note in campaign_tables.build_notes(made):
        console.print(escape(note), style="dim")
