"""agent2rl verify"""

import sys
from pathlib import Path

import click

from agent2rl.cli.options import as_json, complete_runs, resolve_run, runs_dir
from agent2rl.grading.verify import verify_run


@click.command("verify")
@click.argument("run", shell_complete=complete_runs)
@click.option("--head", help="The ledger hash that `run` printed: it must be the last record's.")
@runs_dir
@as_json
def verify_command(run: str, head: str | None, runs_dir: Path | None, as_json: bool) -> None:
    """Check that a run's record still holds.

    Recomputes the ledger's chain, every submission's manifest, every file that the ledger pins and every
    revision of the agent's code, and names the first thing that does not hold. Files that nothing pins are
    named, with the reason. Exit code 1 where something does not hold.
    """
    found = verify_run(resolve_run(run, runs_dir), head)
    if as_json:
        click.echo(found.model_dump_json())
    else:
        for note in found.notes:
            click.echo(f"note: {note}")
        for files in found.not_covered:
            click.echo(f"not covered: {files.path}: {files.reason}")
        click.echo(f"{found.records} ledger records, {found.files} files, head {found.head}")
        click.echo("the record holds" if found.holds else f"DOES NOT HOLD: {found.fault}")
    sys.exit(0 if found.holds else 1)
