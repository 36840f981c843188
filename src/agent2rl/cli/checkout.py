"""agent2rl checkout"""

import os
from pathlib import Path

import click

from agent2rl.cli.options import complete_runs, resolve_run, runs_dir
from agent2rl.core.errors import UserError
from agent2rl.store.revisions import read_revision_files

LINK = 0o120000


@click.command("checkout")
@click.argument("run", shell_complete=complete_runs)
@click.argument("number", type=click.IntRange(1))
@click.argument("folder", type=click.Path(path_type=Path))
@runs_dir
def checkout_command(run: str, number: int, folder: Path, runs_dir: Path | None) -> None:
    """Write revision NUMBER of the agent's code in RUN into FOLDER, which must not be there yet.

    Links are written as they are and lead wherever the agent had them lead.
    """
    found = list(read_revision_files(resolve_run(run, runs_dir).revisions, number))
    if folder.exists():
        raise UserError(f"{folder} is there already.", "Name a folder that is not: nothing is overwritten.")
    folder.mkdir(parents=True)
    for each in found:
        path = folder.joinpath(*map(os.fsdecode, each.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        if each.mode == LINK:
            path.symlink_to(os.fsdecode(each.content))
        else:
            path.write_bytes(each.content)
            path.chmod(each.mode & 0o777)
    click.echo(f"{len(found)} files in {folder}")
