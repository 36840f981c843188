"""agent2rl revisions"""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent2rl.cli.options import as_json, complete_runs, resolve_run, runs_dir
from agent2rl.cli.terminal_output import sanitize_lines
from agent2rl.store.revisions import diff_revisions, list_revisions


@click.command("revisions")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--diff", nargs=2, type=click.IntRange(0), metavar="A B", help="What changed from A to B; 0 is nothing."
)
@runs_dir
@as_json
def revisions_command(run: str, diff: tuple[int, int] | None, runs_dir: Path | None, as_json: bool) -> None:
    """List the revisions of the agent's code in RUN, or show what changed between two.

    There is one for each change and each submission. They are commits: in the run's directory,
    `git -C revisions log -p` works too.

    \b
    agent2rl revisions RUN
    agent2rl revisions RUN --diff 1 4
    """
    path = resolve_run(run, runs_dir).revisions
    if diff:
        click.echo(sanitize_lines(diff_revisions(path, *diff)), nl=False)
        return
    found = list_revisions(path)
    if as_json:
        for revision in found:
            click.echo(revision.model_dump_json())
        return
    table = Table("#", "after", "why", "files", "changed", "commit")
    for revision in found:
        after = f"{revision.at - found[0].at:.0f} s"
        why = Text(revision.reason)
        table.add_row(
            str(revision.number), after, why, str(revision.files), str(revision.changed), revision.commit[:10]
        )
    Console(highlight=False).print(table)
