"""agent2rl list"""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent2rl import registry
from agent2rl.cli.options import as_json
from agent2rl.runner.settings import read_settings

KINDS: list[registry.PluginKind] = ["tasks", "agents", "models", "engines", "sandboxes", "trackers"]


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "--tasks-dir", type=click.Path(path_type=Path, exists=True), multiple=True, help="Task folders."
)
@click.option(
    "--agents-dir", type=click.Path(path_type=Path, exists=True), multiple=True, help="Agent folders."
)
@as_json
def list_command(
    kind: registry.PluginKind, tasks_dir: tuple[Path, ...], agents_dir: tuple[Path, ...], as_json: bool
) -> None:
    """List tasks, agents, models, engines, sandboxes or trackers."""
    where = read_settings()
    folders = {"tasks": (*tasks_dir, *where.tasks), "agents": (*agents_dir, *where.agents)}.get(kind, ())
    entries = [*registry.list_entries(kind), *registry.list_folder_entries(folders)]
    if as_json:
        click.echo(json.dumps([{"name": entry.name, "summary": entry.summary} for entry in entries]))
        return
    table = Table(box=None, show_header=False)
    for entry in entries:
        table.add_row(f"[bold]{escape(entry.name)}[/bold]", escape(entry.summary))
    Console(highlight=False).print(table)
