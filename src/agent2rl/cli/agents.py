"""agent2rl agents"""

import json

import click
from rich.console import Console
from rich.table import Table

from agent2rl.cli.options import as_json
from agent2rl.core.errors import UserError
from agent2rl.runner.agent_install import find_installed, install_agent_package, list_driven_agents
from agent2rl.runner.settings import read_settings


@click.group("agents", invoke_without_command=True)
@click.pass_context
@as_json
def agents_command(context: click.Context, as_json: bool) -> None:
    """List the agents that an LLM drives, or install them.

    \b
    agent2rl agents
    agent2rl agents install claude-code codex
    """
    if context.invoked_subcommand is None:
        _print_agents(as_json)


@agents_command.command("install")
@click.argument("names", nargs=-1, required=True)
def install_command(names: tuple[str, ...]) -> None:
    """Install agents by NAME, at the versions they were tried with, from npm or PyPI.

    Each gets a directory of its own in the cache. What is there already is left as it is.
    """
    known = list_driven_agents()
    for name in names:
        if name not in known:
            raise UserError(f"There is no agent {name!r} to install.", f"Known: {', '.join(sorted(known))}.")
    for name in names:
        package, cache = known[name].package, read_settings().cache
        there = find_installed(name, package, cache)
        prefix = there or install_agent_package(name, package, cache, lambda text: click.echo(text, err=True))
        click.echo(f"{name} {package.version} {'is' if there else 'now is'} in {prefix}")


def _print_agents(as_json: bool) -> None:
    cache = read_settings().cache
    rows = [
        {
            "name": name,
            "version": agent.package.version,
            "installed": find_installed(name, agent.package, cache) is not None,
            "wires": list(agent.wires),
            "package": f"{agent.package.registry}:{agent.package.name}",
        }
        for name, agent in sorted(list_driven_agents().items())
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
