"""agent2rl agents"""

import json

import click
from rich.console import Console
from rich.table import Table

from agent2rl.cli.options import as_json
from agent2rl.core.errors import UserError
from agent2rl.runner.installing import driven, install, installed
from agent2rl.runner.settings import settings


@click.group("agents", invoke_without_command=True)
@click.pass_context
@as_json
def command(context: click.Context, as_json: bool) -> None:
    """List the agents that an LLM drives, or install them.

    \b
    agent2rl agents
    agent2rl agents install claude-code codex
    """
    if context.invoked_subcommand is None:
        _list(as_json)


@command.command("install")
@click.argument("names", nargs=-1, required=True)
def install_command(names: tuple[str, ...]) -> None:
    """Install agents by NAME, at the versions they were tried with, from npm or PyPI.

    Each gets a directory of its own in the cache. What is there already is left as it is.
    """
    known = driven()
    for name in names:
        if name not in known:
            raise UserError(f"There is no agent {name!r} to install.", f"Known: {', '.join(sorted(known))}.")
    for name in names:
        package, cache = known[name].package, settings().cache
        there = installed(name, package, cache)
        prefix = there or install(name, package, cache, lambda text: click.echo(text, err=True))
        click.echo(f"{name} {package.version} {'is' if there else 'now is'} in {prefix}")


def _list(as_json: bool) -> None:
    cache = settings().cache
    rows = [
        {
            "name": name,
            "version": agent.package.version,
            "installed": installed(name, agent.package, cache) is not None,
            "wires": list(agent.wires),
            "package": f"{agent.package.registry}:{agent.package.name}",
        }
        for name, agent in sorted(driven().items())
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table("agent", "version", "installed", "speaks", "package")
    for row in rows:
        wires = row["wires"] if isinstance(row["wires"], list) else []
        there = "yes" if row["installed"] else "no"
        table.add_row(str(row["name"]), str(row["version"]), there, ", ".join(wires), str(row["package"]))
    Console(highlight=False, soft_wrap=True).print(table)
