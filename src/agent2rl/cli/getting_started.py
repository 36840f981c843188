"""Small commands to get started: `init`, `list`, `agents` and `completion`."""

import json
from pathlib import Path

import click
from click.shell_completion import get_completion_class
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent2rl import registry
from agent2rl.cli.options import as_json
from agent2rl.core.errors import UserError
from agent2rl.run.agent_install import find_installed, install_agent_package, list_driven_agents
from agent2rl.run.settings import read_settings

# The command `init`

SOURCE = Path(__file__).with_name("starting")
PARTS = {"campaign": "campaign.toml", "task": "tasks", "agent": "agents"}
NEXT = {
    "campaign": "agent2rl campaign plan campaign.toml",
    "task": "agent2rl check shout --tasks-dir tasks",
    "agent": "agent2rl run --task gsm8k-mini --agent beginner --agents-dir agents --budget 1m",
}


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option(
    "--only",
    type=click.Choice(list(PARTS)),
    multiple=True,
    help="Create only this part. Can be repeated.  [default: all three]",
)
def init_command(folder: Path, only: tuple[str, ...]) -> None:
    """Create an example campaign, task and agent in FOLDER (default: the current one).

    The files are commented and work as they are. Plan the campaign, check the task, run the agent, then adapt
    them to your needs. Existing files are never overwritten.

    \b
    agent2rl init my-experiments
    agent2rl init --only task
    """
    parts = [part for part in PARTS if not only or part in only]
    files = [path for part in parts for path in _list_files(SOURCE / PARTS[part])]
    targets = {path: folder / path.relative_to(SOURCE) for path in files}
    if existing := [target for target in targets.values() if target.exists() or target.is_symlink()]:
        raise UserError(f"{existing[0]} already exists.", "Choose another folder, or move it away.")
    try:
        for path, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            target.chmod(0o755 if path.suffix == ".sh" else 0o644)
            click.echo(f"  {target}")
    except OSError as error:
        raise UserError(f"Cannot write {folder}: {error.strerror}.", "Choose another folder.") from error
    click.echo("next:" if folder == Path() else f"next, in {folder}:")
    for part in parts:
        click.echo(f"  {NEXT[part]}")


def _list_files(path: Path) -> list[Path]:
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [file for file in paths if file.is_file() and "__pycache__" not in file.parts]


# The command `list`

KINDS: list[registry.PluginKind] = ["tasks", "agents", "models", "engines", "sandboxes", "trackers"]


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "--tasks-dir",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="Also list task folders here.",
)
@click.option(
    "--agents-dir",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="Also list agent folders here.",
)
@as_json
def list_command(
    kind: registry.PluginKind, tasks_dir: tuple[Path, ...], agents_dir: tuple[Path, ...], as_json: bool
) -> None:
    """List tasks, agents, models, engines, sandboxes or trackers."""
    settings = read_settings()
    folders = {"tasks": (*tasks_dir, *settings.tasks), "agents": (*agents_dir, *settings.agents)}.get(
        kind, ()
    )
    entries = [*registry.list_entries(kind), *registry.list_folder_entries(folders)]
    if as_json:
        click.echo(json.dumps([{"name": entry.name, "summary": entry.summary} for entry in entries]))
        return
    table = Table(box=None, show_header=False)
    for entry in entries:
        table.add_row(f"[bold]{escape(entry.name)}[/bold]", escape(entry.summary))
    Console(highlight=False).print(table)


# The command `agents`


@click.group("agents", invoke_without_command=True)
@click.pass_context
@as_json
def agents_command(context: click.Context, as_json: bool) -> None:
    """List or install the LLM-driven agents.

    \b
    agent2rl agents
    agent2rl agents install claude-code codex
    """
    if context.invoked_subcommand is None:
        _print_agents(as_json)


@agents_command.command("install")
@click.argument("names", nargs=-1, required=True)
def install_command(names: tuple[str, ...]) -> None:
    """Install agents by name from npm or PyPI, in the versions that agent2rl was tested with.

    Each agent gets its own directory in the cache. Agents that are already installed are left as they are.
    """
    known = list_driven_agents()
    for name in names:
        if name not in known:
            raise UserError(f"There is no agent {name!r} to install.", f"Known: {', '.join(sorted(known))}.")
    for name in names:
        package, cache = known[name].package, read_settings().cache
        installed = find_installed(name, package, cache)
        prefix = installed or install_agent_package(
            name, package, cache, lambda text: click.echo(text, err=True)
        )
        click.echo(f"{name} {package.version} {'is' if installed else 'is now'} in {prefix}")


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
    table = Table("agent", "version", "installed", "APIs", "package")
    for row in rows:
        wires = row["wires"] if isinstance(row["wires"], list) else []
        installed = "yes" if row["installed"] else "no"
        table.add_row(str(row["name"]), str(row["version"]), installed, ", ".join(wires), str(row["package"]))
    Console(highlight=False, soft_wrap=True).print(table)


# The command `completion`

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands, options and names.

    \b
    agent2rl completion bash > ~/.local/share/bash-completion/completions/agent2rl
    agent2rl completion zsh > ~/.zfunc/_agent2rl
    agent2rl completion fish > ~/.config/fish/completions/agent2rl.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "agent2rl", "_AGENT2RL_COMPLETE").source())
